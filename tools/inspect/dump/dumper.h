#pragma once

#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"
#include "ir/io/printer.h"
#include "ir/support/regex.h"

namespace fusor::inspect {

// Receives dumped files.
class DumpSink {
 public:
  virtual ~DumpSink();
  // `path`: relative, '/' between FileNames. Called once per path.
  virtual void Write(const std::string& path, std::string_view bytes) = 0;
};

// Writes to a folder, which is created if necessary. Each file is written under
// a temporary name, then renamed. Throws kUsage on write errors. The
// constructor throws kUsage if the folder is not writable or already holds a
// dump, because two dumps in one folder would mix.
class FolderSink : public DumpSink {
 public:
  explicit FolderSink(std::string folder);
  void Write(const std::string& path, std::string_view bytes) override;

 private:
  const std::string folder_;
};

// Writes all files to a stream, which must outlive this. Each file follows a
// line "// path", with `prefix` before the path.
class StreamSink : public DumpSink {
 public:
  explicit StreamSink(std::ostream& stream, std::string prefix = "")
      : stream_(stream), prefix_(std::move(prefix)) {}
  void Write(const std::string& path, std::string_view bytes) override;

 private:
  std::ostream& stream_;
  const std::string prefix_;
};

// Returns the name with '_' in place of characters other than letters, digits,
// '.', '_' and '-'. Shortens a long name and appends a hash of the whole, so
// that it stays unique and numbers and suffixes fit into the 255 bytes of a
// file name.
std::string FileName(std::string_view name);

// Returns the graph in Graphviz DOT, for `dot -Tsvg`. Nodes show op and
// location, edges show value types. A fusion's body is a cluster. Inputs are
// boxes, coloured by whether they are state. Outputs are ovals; a dashed edge
// leads from an output to the input whose next value it is.
std::string ToDot(const ir::Graph& graph);

// Returns one row per decision of a pass: pass, subject, location, source,
// accepted, estimated time with and without the rewrite, reason. Times are in
// ns, empty if there is no estimate.
std::string DecisionsCsv(const std::vector<passes::Decision>& decisions);

// Returns the decisions of mixed precision: a row per model part, a column per
// decision, and a row "total". Empty without decisions.
std::string PrecisionCsv(const std::vector<passes::Decision>& decisions);

// Returns how each kernel of the schedule runs: a row per phase with its grid.
std::string LaunchesCsv(const codegen::Plan& plan);

// Writes one file of a program's dump.
using WriteFile =
    std::function<void(const std::string& path, std::string_view bytes)>;

// Writes the library plans of the calls that have one, as NNNN.OP.json.
void DumpCalls(const codegen::Plan& plan, const WriteFile& write);

// Writes each kernel's IR as NNNN.NAME.txt, and what the target compiles it to.
void DumpKernels(const codegen::Plan& plan,
                 const codegen::TargetCompiler& compiler,
                 const WriteFile& write);

// Dumps the compilation of each module, to read it or to compare it with other
// versions or options:
//
//   manifest.json                  versions and options
//   m0000.resnet50_v1_5/           one numbered folder per module
//     0000.forward.simplify.before.txt
//     0000.forward.simplify.after.txt
//     0001.forward.fuse_norm_activation.after.txt
//     ...                          passes that changed the graph
//     decisions.csv                fusion decisions and rejection reasons
//     precision.csv                casts and 16-bit ops per location, if any
//     plan.txt schedule.txt memory.txt launches.csv
//     decisions.html memory.html   with DumpFormat::kHtml
//     kernels/0000.NAME.txt .ll .s
//     calls/0000.OP.json
//     module.json                  target, versions, passes, counts
//
// A pass's "before" is omitted if it equals another file's "after". A dump does
// not depend on the machine's load, memory addresses or file names: equal
// compilations write equal bytes.

enum class DumpFormat { kText, kProto, kDot, kHtml };

struct DumpOptions {
  // Regular expressions (ECMAScript), matched anywhere in the name; module
  // names are their folders' names. Empty: all. Output after the passes
  // (decisions, precision, plan, schedule, memory, launches, kernels,
  // calls) is selected by these words as if they were passes of pipeline
  // "codegen".
  std::string pass;
  std::string module;
  std::string pipeline;
  std::set<DumpFormat> formats = {DumpFormat::kText};
  // Text omits longer constants. The parser then rejects it.
  size_t max_list = 16;
  // Written to the manifest.
  std::string version;
  std::string command;
  std::map<std::string, std::string> options;  // only non-default ones
};

// Not thread-safe. Calls per module: Begin, Pass for each pass, then Program
// unless compilation ends early.
class Dumper {
 public:
  // Throws kUsage if an expression is malformed, or if the one for passes or
  // pipelines matches no known name. Writes nothing before the first module.
  Dumper(DumpOptions options, std::unique_ptr<DumpSink> sink);

  void Begin(const ir::Graph& graph);
  // If the pass failed, writes both graphs in full and ignores the filters.
  void Pass(const passes::PassTrace& trace, const ir::Graph& graph);
  void Decisions(const std::vector<passes::Decision>& decisions);
  // Includes the decisions of its passes, if any ran.
  void Program(const codegen::CompiledProgram& program,
               const codegen::TargetCompiler& compiler);

  // Returns the names of the modules seen so far if the module filter matched
  // none of them and nothing was dumped; otherwise empty.
  std::vector<std::string> ModulesLeftOut() const;

  // Returns an observer that dumps each compilation as a new module.
  static codegen::CompileObserver Observe(
      const std::shared_ptr<Dumper>& dumper);

 private:
  bool Selects(const std::string& pipeline, const std::string& pass) const;
  // Whether to write text, or a page, of that name, after the passes.
  bool SelectsText(const std::string& name) const;
  bool SelectsPage(const std::string& name) const;
  // Returns a page title, e.g. "m0000.resnet18: memory".
  std::string Title(std::string_view what) const;
  void Write(const std::string& path, std::string_view bytes);
  void WriteGraph(const std::string& path, const ir::Graph& graph,
                  const ir::PrintOptions& print);

  const DumpOptions options_;
  const std::unique_ptr<DumpSink> sink_;
  std::optional<Regex> pass_, module_, pipeline_;

  std::vector<std::string> modules_;  // all seen so far
  bool any_selected_ = false;

  // Current module.
  bool active_ = false;
  std::string folder_;
  int number_ = -1;                      // number of the last pass
  std::unique_ptr<ir::Graph> previous_;  // the graph before the next pass
  bool previous_written_ = false;
};

}  // namespace fusor::inspect
