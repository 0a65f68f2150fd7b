#include "tools/fusor/flags/recipes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::tools {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Split(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string Text(const std::vector<std::string>& words) {
  return Join(words, " ", [](const auto& word) { return word; });
}

class RecipesTest : public ::testing::Test {
 protected:
  RecipesTest() {
    CLI::App* train = app_.add_subcommand("train", "");
    for (const char* flag : {"--lr", "--mom", "--label-smoothing", "--prof"}) {
      train->add_option(flag);
    }
    AddRecipeFlags(*train, flags_);
    CLI::App* launch = app_.add_subcommand("launch", "");
    launch->add_option("--nproc-per-node");
    app_.add_subcommand("eval", "");
  }

  // Returns the words after "train", without the notes.
  std::string Translate(const std::string& words, int64_t ranks = 1) {
    std::vector<std::string> args = Split("train " + words);
    args = TranslateRecipe(app_, args, [ranks] { return ranks; });
    notes_.clear();
    while (args.size() > 2 && args[args.size() - 2] == "--recipe-note") {
      notes_.insert(notes_.begin(), args.back());
      args.resize(args.size() - 2);
    }
    return Text(args).substr(args.size() > 1 ? 6 : 5);
  }

  std::string Rejection(const std::string& words, int64_t ranks = 1) {
    try {
      Translate(words, ranks);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return error.what();
    }
    return "";
  }

  CLI::App app_;
  RecipeFlags flags_;
  std::vector<std::string> notes_;
};

TEST_F(RecipesTest, OwnFlagsAndUnknownOnesAreLeftAlone) {
  for (const char* words : {"DATA --lr 0.1", "--lr=0.1 --no-such-flag 3", "",
                            "-- --batch_size 3"}) {
    EXPECT_EQ(Translate(words), words);
    EXPECT_TRUE(notes_.empty());
  }
}

TEST_F(RecipesTest, TheScriptIsFoundByItsFlags) {
  const std::string base =
      "--num-classes 1001 --lr 0.1 --lr-scale-batch 256 --warmup 5 --mom 0.9 "
      "--wd 1e-4 --epochs 1 --lr-schedule step --milestones 30,60,80,90 "
      "--gamma 0.1 --synthetic ";
  EXPECT_EQ(Translate("--lr_init=0.256 --batch-size 8"),
            base + "--lr 0.256 -b 8");
  EXPECT_THAT(notes_, ::testing::ElementsAre("recipe    tf1: " + base +
                                             "--lr 0.256 -b 8"));
  // Paddle has the same flag, but less of the others.
  EXPECT_THAT(Translate("--data_format NCHW --lr_init 1 --use_tf_amp"),
              HasSubstr("--dynamic-loss-scale --initial-loss-scale 32768"));
  // Named, although no flag shows it.
  EXPECT_EQ(Translate("--recipe tf1"), base + "--recipe tf1");
}

TEST_F(RecipesTest, FlagsOfTrainAndOfTheScriptKeepTheirOrder) {
  EXPECT_THAT(Translate("--lr_init 0.2 --lr 0.3 --use_cosine_lr"),
              ::testing::EndsWith("--lr 0.2 --lr 0.3 --lr-schedule cosine"));
}

TEST_F(RecipesTest, FlagsDependOnOthers) {
  EXPECT_THAT(Translate("--num_iter 5 --iter_unit=batch --lr_init 1"),
              HasSubstr("--epochs 90 --prof 5"));
  EXPECT_THAT(Translate("--num_iter 5 --iter_unit=epoch --lr_init 1"),
              HasSubstr("--epochs 5 --lr 1"));
  EXPECT_THAT(Translate("--lr_init 1 --loss_scale 64 --use_tf_amp "
                        "--use_static_loss_scaling"),
              ::testing::EndsWith("--amp --static-loss-scale 64"));
  Translate("--lr_init 1 --loss_scale 64");
  EXPECT_EQ(notes_.back(),
            "ignored   --loss_scale (--use_static_loss_scaling is not given)");
}

TEST_F(RecipesTest, FlagsWithoutEffectNeedNoScript) {
  EXPECT_EQ(Translate("DATA --use_xla --memory-format nhwc --lr 0.1"),
            "DATA --lr 0.1");
  EXPECT_THAT(notes_,
              ::testing::ElementsAre(
                  "ignored   --use_xla (the whole step is compiled), "
                  "--memory-format (the compiler chooses the layouts)"));
  EXPECT_EQ(Translate("DATA --data-backend syntetic"),
            "DATA --synthetic --ignore-data");
}

TEST_F(RecipesTest, ValuesAreTranslated) {
  EXPECT_THAT(Translate("--image_shape 3 96 96 --class_dim=7"),
              ::testing::EndsWith("--image-size 96 --num-classes 7"));
  EXPECT_THAT(Translate("--image_shape=3,96,96 --class_dim=7"),
              ::testing::EndsWith("--image-size 96 --num-classes 7"));
  EXPECT_THAT(Translate("--batch_size 64 --class_dim 7", 4),
              HasSubstr("-b 16 "));
  EXPECT_THAT(Translate("--rec-train=/d/a/train.rec --num-epochs 3"),
              ::testing::EndsWith("--lr-scale-batch 128 /d/a --epochs 3"));
  EXPECT_THAT(Translate("--rec-train train.rec --batch-size 32 --no-wd"),
              HasSubstr("--lr-scale-batch 32 . "));
  EXPECT_THAT(Translate("--model=ResNet50 --class_dim 7"),
              HasSubstr("--arch resnet50"));
}

TEST_F(RecipesTest, WhatCannotBeFollowedIsRejected) {
  EXPECT_EQ(Rejection("--lr_init 1 --precision=bf16"),
            "recipe tf1: --precision=bf16: expected fp32, fp16, got bf16");
  EXPECT_EQ(Rejection("--lr_init 1 --mode=predict"),
            "recipe tf1: --mode=predict: expected a mode that trains or "
            "evaluates");
  EXPECT_EQ(Rejection("--lr_init 1 --use_tf_amp=3"),
            "recipe tf1: --use_tf_amp=3: expected no value");
  EXPECT_EQ(Rejection("--lr_init"),
            "recipe tf1: --lr_init: expected 1 value, got 0");
  EXPECT_EQ(Rejection("--image_shape 3 224 --class_dim"),
            "recipe paddle: --image_shape: expected 3 values, got 2");
  EXPECT_EQ(Rejection("--batch_size 6 --class_dim 7", 4),
            "recipe paddle: --batch-size: expected a multiple of 4 ranks, got "
            "6");
}

TEST_F(RecipesTest, ARecipeWithoutACommandLinePutsItsFlagsInFront) {
  EXPECT_THAT(
      Translate("DATA --recipe timm-a3 --lr 0.3"),
      ::testing::AllOf(::testing::StartsWith("--arch resnet50 "),
                       ::testing::EndsWith(" DATA --recipe timm-a3 --lr 0.3")));
  EXPECT_EQ(notes_.back(),
            "without   timm's RandAugment (torchvision's is used), bicubic "
            "interpolation");
  EXPECT_THAT(Translate("--recipe torchvision-v1"),
              HasSubstr("--milestones 30,60"));
  EXPECT_EQ(notes_.size(), 1);
  // A list would collect the values.
  for (const char* name : {"torchvision-v1", "apex", "tf1"}) {
    EXPECT_THAT(Translate(std::string("--milestones 9 --recipe ") + name),
                ::testing::AllOf(::testing::Not(HasSubstr("30,60")),
                                 HasSubstr("--gamma 0.1"),
                                 HasSubstr("--milestones 9")));
  }
}

TEST_F(RecipesTest, LaunchedCommandsAreSeparated) {
  const auto separate = [&](const std::string& words) {
    return Text(SeparateCommand(app_, Split(words)));
  };
  EXPECT_EQ(separate("launch --nproc-per-node 2 train DATA"),
            "launch --nproc-per-node 2 -- train DATA");
  EXPECT_EQ(separate("launch -- train eval"), "launch -- train eval");
  EXPECT_EQ(separate("train launch eval"), "train launch eval");
  EXPECT_EQ(separate("launch"), "launch");
}

TEST_F(RecipesTest, UnderscoresAreDashes) {
  EXPECT_EQ(Text(SpellWithDashes(app_, Split("train --label_smoothing=0.1 x_y "
                                             "--no_such --lr 0_1"))),
            "train --label-smoothing=0.1 x_y --no_such --lr 0_1");
  EXPECT_EQ(Text(SpellWithDashes(app_, Split("launch --nproc_per_node 2"))),
            "launch --nproc-per-node 2");
}

}  // namespace
}  // namespace fusor::tools
