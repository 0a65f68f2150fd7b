#include "tools/inspect/dump/dumper.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "ir/io/parser.h"
#include "ir/io/serialize_graph.h"
#include "ir/support/error.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"

namespace fusor::inspect {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// A normalisation with a ReLU, and an unused sum.
constexpr char kModel[] = R"(graph net {
  %x = data : f32[4,16,8,8]
  %w = weight {init="normal", std=0.1} : f32[16,16,3,3]
  %gamma = norm_scale {init="constant", value=1.0} : f32[16]
  %beta = norm_shift {init="constant", value=0.0} : f32[16]
  %conv = conv2d(%x, %w) {pad=[1,1]} : f32[4,16,8,8] @"conv"
  %bn, %mean, %var = batch_norm_train(%conv, %gamma, %beta) {epsilon=0.001} : f32[4,16,8,8], f32[16], f32[16] @"bn"
  %relu = relu(%bn) : f32[4,16,8,8] @"relu"
  %unused = add(%relu, %relu) : f32[4,16,8,8] @"unused"
  %sum = reduce(%relu) {dims=[0,1,2,3], kind="sum"} : f32[] @"loss"
  return %sum as "loss"
})";

using Files = std::map<std::string, std::string>;

class MemorySink : public DumpSink {
 public:
  explicit MemorySink(Files& files) : files_(files) {}
  void Write(const std::string& path, std::string_view bytes) override {
    EXPECT_TRUE(files_.emplace(path, bytes).second) << path << " twice";
  }

 private:
  Files& files_;
};

class DumperTest : public ::testing::Test {
 protected:
  std::shared_ptr<Dumper> Open(const DumpOptions& options) {
    return std::make_shared<Dumper>(options,
                                    std::make_unique<MemorySink>(files_));
  }

  void Compile(const std::shared_ptr<Dumper>& dumper,
               const std::string& text = kModel) {
    codegen::CompileOptions options;
    options.observers.push_back(Dumper::Observe(dumper));
    codegen::Compile(test::ParseOrDie(text), codegen::ProgramKind::kTrain,
                     compiler_, options);
  }

  std::vector<std::string> Paths(const std::string& part) const {
    std::vector<std::string> paths;
    for (const auto& [path, bytes] : files_) {
      if (path.find(part) != std::string::npos) paths.push_back(path);
    }
    return paths;
  }

  // Returns the names with N in place of the pass's number, which changes with
  // the pipeline.
  std::vector<std::string> Names(const std::string& part) const {
    std::vector<std::string> names = Paths(part);
    for (std::string& name : names) {
      name = std::regex_replace(name, std::regex("/[0-9]{4}\\."), "/N.");
    }
    return names;
  }

  Files files_;
  test::FakeCompiler compiler_;
};

TEST_F(DumperTest, WritesGraphsOfChangingPassesAndTheResult) {
  Compile(Open({}));
  EXPECT_THAT(Paths(".before"),
              ElementsAre("m0000.net/0000.forward.simplify.before.txt"));
  EXPECT_THAT(
      Names("m0000.net/"),
      IsSupersetOf({"m0000.net/N.forward.simplify.after.txt",
                    "m0000.net/N.forward.fuse_norm_activation.after.txt",
                    "m0000.net/N.training.autodiff.after.txt",
                    "m0000.net/N.optimize.fuse.after.txt",
                    "m0000.net/decisions.csv", "m0000.net/launches.csv",
                    "m0000.net/memory.txt", "m0000.net/module.json",
                    "m0000.net/plan.txt", "m0000.net/schedule.txt"}));
  // A single rank has no collectives, and there is no stop_gradient to drop.
  EXPECT_THAT(Paths("drop_stop_gradient"), IsEmpty());
  test::ExpectSameGraph(
      kModel,
      *ir::Parse(files_.at("m0000.net/0000.forward.simplify.before.txt")));
}

TEST_F(DumperTest, NumbersTheModulesOfARun) {
  const auto dumper = Open({.module = "other"});
  Compile(dumper);
  Compile(dumper, "graph other" + std::string(kModel).substr(9));
  EXPECT_THAT(Paths("m0000"), IsEmpty());
  EXPECT_THAT(Paths("m0001.other/"), Contains("m0001.other/plan.txt"));
}

TEST_F(DumperTest, FiltersByPassAndPipeline) {
  Compile(
      Open({.pass = "^simplify$|^memory$", .pipeline = "training|codegen"}));
  EXPECT_THAT(Names("m0000"),
              ElementsAre("m0000.net/N.training.simplify.after.txt",
                          "m0000.net/N.training.simplify.before.txt",
                          "m0000.net/memory.txt", "m0000.net/module.json"));
}

TEST_F(DumperTest, WritesEveryFormat) {
  Compile(Open({.pass = "^fuse$",
                .formats = {DumpFormat::kText, DumpFormat::kProto,
                            DumpFormat::kDot, DumpFormat::kHtml}}));
  const std::string text = Paths("optimize.fuse.after.txt")[0];
  const std::string base = text.substr(0, text.size() - 4);
  EXPECT_THAT(files_.at(base + ".dot"), StartsWith("digraph"));
  EXPECT_THAT(files_.at(base + ".html"), StartsWith("<!DOCTYPE html>"));
  const auto graph = ir::Deserialize(files_.at(base + ".pb"));
  test::ExpectSameGraph(files_.at(text), *graph);
}

TEST_F(DumperTest, PagesShowDecisionsAndMemory) {
  Compile(
      Open({.pass = "^decisions$|^memory$", .formats = {DumpFormat::kHtml}}));
  EXPECT_THAT(Paths("m0000.net/"),
              ElementsAre("m0000.net/decisions.html", "m0000.net/memory.html",
                          "m0000.net/module.json"));
  EXPECT_THAT(
      files_.at("m0000.net/decisions.html"),
      AllOf(HasSubstr("fuse_norm_activation"), HasSubstr("residual none"),
            HasSubstr("bn"), HasSubstr("By layer"), HasSubstr("Rejected"),
            HasSubstr("producer and consumer")));
  EXPECT_THAT(files_.at("m0000.net/memory.html"),
              AllOf(HasSubstr("m0000.net: memory"), HasSubstr("memory_map"),
                    HasSubstr("\"loc\":\"conv\"")));
}

TEST_F(DumperTest, OmitsLongConstantsSoThatTheParserRejectsThem) {
  std::string values = "0.5";
  for (int i = 0; i < 99; ++i) values += ",1.5";
  Compile(Open({.pass = "simplify"}),
          "graph net {\n  %w = weight : f32[100]\n  %c = constant() "
          "{dtype=\"f32\", shape=[100], value=[" +
              values +
              "]} : f32[100]\n  %p = mul(%w, %c) : f32[100]\n  %s = reduce(%p) "
              "{dims=[0], kind=\"sum\"} : f32[]\n  return %s as \"loss\"\n}");
  ASSERT_THAT(Paths(".before"), Not(IsEmpty()));
  try {
    ir::Parse(files_.at(Paths(".before")[0]), "dump.txt");
    ADD_FAILURE() << "parsed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(),
                MatchesRegex("dump.txt:[0-9]+:[0-9]+: 100 values are left out "
                             "here; print the graph in full"));
  }
}

TEST_F(DumperTest, ShowsBothSidesOfAPassThatFailed) {
  const auto dumper = Open({.pass = "fuse"});
  const auto graph = test::ParseOrDie(kModel);
  dumper->Begin(*graph);
  graph->Erase(graph->nodes()[3].get());
  dumper->Pass({.pipeline = "forward",
                .name = "simplify",
                .index = 0,
                .changed = true,
                .error = "graph net: verification failed after simplify"},
               *graph);
  const std::string base = "m0000.net/0000.forward.simplify";
  EXPECT_THAT(files_.at(base + ".before.txt"), HasSubstr("%unused"));
  EXPECT_THAT(files_.at(base + ".after.txt"), Not(HasSubstr("%unused")));
  EXPECT_EQ(files_.at(base + ".error.txt"),
            "graph net: verification failed after simplify\n");
}

TEST_F(DumperTest, NamesStayWhenSomethingElsewhereChanges) {
  const auto lines = [&](const std::string& model) {
    files_.clear();
    Compile(Open({.pass = "^fuse$"}), model);
    std::istringstream text(files_.at(Paths("optimize.fuse.after.txt").at(0)));
    std::set<std::string> found;
    for (std::string line; std::getline(text, line);) found.insert(line);
    return found;
  };
  std::string edited = kModel;
  edited.insert(edited.find("  %x = "),
                "  %z = data : f32[8]\n"
                "  %first = exp(%z) : f32[8] @\"first\"\n");
  edited.insert(edited.find("\"loss\"\n}") + 6, ", %first as \"first\"");
  const std::set<std::string> before = lines(kModel), after = lines(edited);
  EXPECT_GT(before.size(), 20u);
  for (const std::string& line : before) {
    if (line.find("return ") == std::string::npos) {
      EXPECT_TRUE(after.contains(line)) << line;
    }
  }
}

TEST_F(DumperTest, NamesCompilerAndOptions) {
  Compile(Open({.version = "1.2",
                .command = "compile",
                .options = {{"--fusion", "off"}}}));
  const auto manifest = nlohmann::json::parse(files_.at("manifest.json"));
  EXPECT_EQ(manifest["fusor"], "1.2");
  EXPECT_EQ(manifest["command"], "compile");
  EXPECT_EQ(manifest["options"]["--fusion"], "off");
  const auto module = nlohmann::json::parse(files_.at("m0000.net/module.json"));
  EXPECT_EQ(module["code_generator"], "fake 1 fake_cpu level=2 r1");
  EXPECT_EQ(module["target"], "cpu-avx2");
  EXPECT_EQ(module["passes"][1]["pass"], "fuse_norm_activation");
}

TEST_F(DumperTest, EveryOutputAfterThePassesCanBeSelectedAlone) {
  for (const char* name : {"decisions", "precision", "plan", "schedule",
                           "memory", "launches", "kernels", "calls"}) {
    SCOPED_TRACE(name);
    files_.clear();
    Compile(Open({.pass = fmt::format("^{}$", name)}));
    for (const std::string& path : Paths("m0000.net/")) {
      EXPECT_THAT(path, AnyOf(HasSubstr(std::string("/") + name),
                              EndsWith("/module.json")));
    }
  }
}

TEST_F(DumperTest, RejectsMalformedRegularExpressions) {
  for (const DumpOptions& options :
       {DumpOptions{.pass = "fuse("}, DumpOptions{.module = "["},
        DumpOptions{.pipeline = "*"}}) {
    try {
      Open(options);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("not a regular expression"));
    }
  }
}

TEST_F(DumperTest, RejectsFiltersThatSelectNothing) {
  for (const DumpOptions& options :
       {DumpOptions{.pass = "fuze"}, DumpOptions{.pipeline = "train$"}}) {
    try {
      Open(options);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.what(),
                  HasSubstr("matches no name; expected a match for one of "));
    }
  }
}

}  // namespace
}  // namespace fusor::inspect
