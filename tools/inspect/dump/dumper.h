#pragma once

// Writes what the compiler makes of each module, so that it can be read, and
// compared with what another version or other options make of it:
//
//   manifest.json                  versions and options
//   m0000.resnet50_v1_5/           one folder a module, numbered
//     0000.forward.simplify.before.txt
//     0000.forward.simplify.after.txt
//     0001.forward.fuse_norm_activation.after.txt
//     ...                          passes that changed the graph
//     decisions.csv                what fused and what did not, and why
//     precision.csv                casts and 16-bit ops by place, if there are
//     plan.txt schedule.txt memory.txt launches.csv
//     decisions.html memory.html   where pages are asked for
//     kernels/0000.NAME.txt .ll .s
//     calls/0000.OP.json
//     module.json                  target, versions, passes, counts
//
// A pass's "before" is written where it is no other file's "after". Nothing in
// a dump depends on the machine's load, memory layout or file names: the same
// compilation writes the same bytes.

#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "ir/io/printer.h"
#include "tools/inspect/dump/dump_sink.h"

namespace fusor::codegen {

enum class DumpFormat { kText, kProto, kDot, kHtml };

struct DumpOptions {
  // Regular expressions (ECMAScript) that are to be found in the names, of
  // modules in those of their folders; empty: all. What follows the passes -
  // decisions, precision, plan, schedule, memory, launches, kernels - is
  // selected by these names as if passes of pipeline "codegen".
  std::string pass;
  std::string module;
  std::string pipeline;
  std::set<DumpFormat> formats = {DumpFormat::kText};
  // Longer constants are left out of text, which the parser then refuses.
  size_t max_list = 16;
  // For the manifest.
  std::string version;
  std::string command;
  std::map<std::string, std::string> options;  // that are not the default
};

// Not thread-safe. Calls for one module: Begin, Pass.., then perhaps Program.
class Dumper {
 public:
  // Throws kUsage where an expression is malformed, and where that of passes or
  // of pipelines is found in no name that there is. Writes nothing before the
  // first module.
  Dumper(DumpOptions options, std::unique_ptr<DumpSink> sink);

  void Begin(const ir::Graph& graph);
  // After a pass that failed, both sides are written in full, whatever the
  // filters say.
  void Pass(const passes::PassTrace& trace, const ir::Graph& graph);
  void Decisions(const std::vector<passes::Decision>& decisions);
  // With the decisions of its passes, if any ran.
  void Program(const CompiledProgram& program, const TargetCompiler& compiler);

  // Names of the modules that began, when the expression for modules was found
  // in none of them: nothing was dumped.
  std::vector<std::string> ModulesLeftOut() const;

  // Dumps every compilation that it watches; the graph at the start is a new
  // module.
  static CompileObserver Observe(const std::shared_ptr<Dumper>& dumper);

 private:
  bool Selects(const std::string& pipeline, const std::string& pass) const;
  // Whether text, or a page, of that name is to be written of what follows the
  // passes.
  bool SelectsText(const std::string& name) const;
  bool SelectsPage(const std::string& name) const;
  // Of a page: "m0000.resnet18: memory".
  std::string Title(std::string_view what) const;
  void Write(const std::string& path, std::string_view bytes);
  void WriteGraph(const std::string& path, const ir::Graph& graph,
                  const ir::PrintOptions& print);

  const DumpOptions options_;
  const std::unique_ptr<DumpSink> sink_;
  std::optional<std::regex> pass_, module_, pipeline_;

  std::vector<std::string> modules_;  // that began
  bool any_selected_ = false;

  // Of the module at hand.
  bool active_ = false;
  std::string folder_;
  int number_ = -1;                      // of the last pass
  std::unique_ptr<ir::Graph> previous_;  // the graph before the next pass
  bool previous_written_ = false;
};

}  // namespace fusor::codegen
