#include "ir/support/str.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fusor {
namespace {

TEST(NearestName, TakesTheFewestEdits) {
  const std::vector<std::string> known = {"eval", "train", "trace"};
  EXPECT_EQ(NearestName("trian", known), "train");
  EXPECT_EQ(NearestName("evl", known), "eval");
}

TEST(NearestName, PutsABeginningWithFewerEditsFirst) {
  const std::vector<std::string> known = {"--arch", "--batch-size", "--fan"};
  EXPECT_EQ(NearestName("--bach", known), "--batch-size");
  EXPECT_EQ(NearestName("--batch", known), "--batch-size");
  EXPECT_EQ(NearestName("--arhc", known), "--arch");
}

TEST(NearestName, PutsTheShorterOfEqualBeginningsFirst) {
  const std::vector<std::string> known = {"resnet50-v1.5", "resnet50", "vgg"};
  EXPECT_EQ(NearestName("resnet51", known), "resnet50");
}

TEST(NearestName, IsEmptyWhenNothingIsNear) {
  const std::vector<std::string> known = {"--arch", "--lr", "-b"};
  EXPECT_EQ(NearestName("--x", known), "");
  EXPECT_EQ(NearestName("-q", known), "");
  EXPECT_EQ(NearestName("--version", std::vector<std::string>{"--fusion"}), "");
  EXPECT_EQ(NearestName("--frobnicate", known), "");
  EXPECT_EQ(NearestName("anything", {}), "");
}

TEST(NameHint, IsTheNearestNameOrAll) {
  const std::vector<std::string> known = {"fuse", "simplify"};
  EXPECT_EQ(NameHint("fuze", known), "; did you mean fuse?");
  EXPECT_EQ(NameHint("nothing", known), "; there are fuse, simplify");
}

TEST(OneLine, EscapesControlCharacters) {
  EXPECT_EQ(OneLine("a\nb\x1b[31m\x7f c"), "a\\x0ab\\x1b[31m\\x7f c");
}

}  // namespace
}  // namespace fusor
