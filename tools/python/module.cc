// The extension module fusor._fusor. The package fusor adds optimizers, reports
// and PyTorch models in Python.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <memory>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "tools/python/comparison.h"
#include "tools/python/graph_builder.h"
#include "tools/python/host_array.h"
#include "tools/python/model.h"
#include "tools/python/options.h"
#include "tools/python/training.h"
#include "tools/python/training_step.h"

namespace fusor::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using ModelSource = std::variant<std::string, GraphBuilder>;
using Texts = std::tuple<std::string, std::string, std::string>;

// Raises fusor.Error for Error.
void BindError() {
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void*) {
        try {
          std::rethrow_exception(thrown);
        } catch (const Error& error) {
          const nb::object type =
              nb::module_::import_("fusor.errors").attr("Error");
          nb::object raised = type(OneLine(error.what()));
          raised.attr("code") = static_cast<int>(error.code());
          PyErr_SetObject(type.ptr(), raised.ptr());
        }
      });
}

Model Open(const ModelSource& source) {
  if (const auto* builder = std::get_if<GraphBuilder>(&source)) {
    return ModelOf(builder->draft->graph.Clone());
  }
  return OpenModel(std::get<std::string>(source));
}

std::vector<HostArray> Arrays(const nb::sequence& objects,
                              const std::string& name) {
  std::vector<HostArray> arrays;
  for (nb::handle object : objects) {
    arrays.emplace_back(object, fmt::format("{}[{}]", name, arrays.size()));
  }
  return arrays;
}

std::vector<HostArray> NamedArrays(const nb::dict& objects) {
  std::vector<HostArray> arrays;
  for (const auto& [name, object] : objects) {
    arrays.emplace_back(object, nb::cast<std::string>(name));
  }
  return arrays;
}

// One array per data input of the step: positional, then by name. Without
// `whole` the last ones may be missing.
std::vector<HostArray> Batch(const TrainingStep& step, const nb::args& args,
                             const nb::kwargs& kwargs, bool whole = true) {
  const auto& inputs = step.inputs();
  const size_t given = args.size() + kwargs.size();
  FUSOR_CHECK(
      whole ? given == inputs.size() : given < inputs.size(), kUsage,
      "{}: expected {}{} arrays ({}), got {}", step.model_name(),
      whole ? "" : "fewer than ", inputs.size(),
      Join(inputs, ", ",
           [](const auto& input) { return ir::OwnInputName(input.first); }),
      given);
  std::vector<HostArray> batch;
  for (size_t i = 0; i < given; ++i) {
    const std::string name = ir::OwnInputName(inputs[i].first);
    if (i < args.size()) {
      batch.emplace_back(args[i], name);
      continue;
    }
    FUSOR_CHECK(kwargs.contains(name.c_str()), kUsage,
                "{}: expected input {}, got none", step.model_name(), name);
    batch.emplace_back(kwargs[name.c_str()], name);
  }
  return batch;
}

Texts ToTuple(ReportTexts report) {
  return {std::move(report.text), std::move(report.html),
          std::move(report.json)};
}

// The number of samples, and the means over them.
std::tuple<int64_t, double, double, double> ToTuple(
    const runtime::EvalReport& report) {
  return {report.images, report.loss, report.top1, report.top5};
}

using InputType = std::tuple<std::string, std::string, nb::tuple>;

std::vector<InputType> InputTypes(const TrainingStep& step) {
  std::vector<InputType> inputs;
  for (const auto& [name, type] : step.inputs()) {
    inputs.emplace_back(ir::OwnInputName(name), ir::DTypeName(type.dtype),
                        nb::tuple(nb::cast(type.shape)));
  }
  return inputs;
}

// The functions that exchange state and files.
void BindState(nb::class_<TrainingStep>& step) {
  step.def("state_names", &TrainingStep::StateNames);
  step.def("state", &TrainingStep::State,
           nb::sig("def state(self) -> dict[str, object]"));
  step.def(
      "load_state",
      [](TrainingStep& self, const nb::dict& state, bool strict) {
        self.LoadState(NamedArrays(state), strict);
      },
      "state"_a, "strict"_a,
      nb::sig("def load_state(self, state: dict[str, object], "
              "strict: bool) -> None"));
  step.def("save_weights", &TrainingStep::SaveWeights, "path"_a);
  step.def("load_weights", &TrainingStep::LoadWeights, "path"_a);
  step.def("save_program", &TrainingStep::SaveProgram, "path"_a);
  step.def("save_checkpoint", &TrainingStep::SaveCheckpoint, "folder"_a,
           "keep"_a);
  step.def("load_checkpoint", &TrainingStep::LoadCheckpoint, "path"_a);
  step.def(
      "report",
      [](TrainingStep& self, int64_t top) { return ToTuple(self.Report(top)); },
      "top"_a);
}

void BindStep(nb::module_& module) {
  nb::class_<TrainingStep> c(module, "TrainingStep",
                             "The compiled step behind fusor.Step.");
  c.def(
      "__init__",
      [](TrainingStep* self, const ModelSource& model,
         const nb::sequence& example, const nb::dict& options, bool ranks) {
        new (self) TrainingStep(Open(model), Arrays(example, "example"),
                                ParseOptions(options), ranks);
      },
      "model"_a, "example"_a, "options"_a, "ranks"_a,
      nb::sig("def __init__(self, model: str | Builder, "
              "example: collections.abc.Sequence[object], "
              "options: dict[str, object], ranks: bool) -> None"));
  c.def_static(
      "load_program",
      [](const std::string& path) {
        return std::make_unique<TrainingStep>(path);
      },
      "path"_a);
  c.def_prop_ro("model", &TrainingStep::model_name);
  c.def_prop_ro("device", &TrainingStep::device);
  c.def_prop_ro("rank", &TrainingStep::rank);
  c.def_prop_ro("world_size", &TrainingStep::world_size);
  c.def("leave", &TrainingStep::Leave);
  c.def_prop_ro("inputs", &InputTypes,
                nb::sig("def inputs(self, /) -> "
                        "list[tuple[str, str, tuple[int, ...]]]"));
  c.def_prop_ro("steps", &TrainingStep::steps);
  c.def_prop_rw("lr", &TrainingStep::lr, &TrainingStep::set_lr);
  c.def(
      "run",
      [](TrainingStep& self, const nb::args& args, const nb::kwargs& kwargs) {
        return self.Run(Batch(self, args, kwargs));
      },
      "args"_a, "kwargs"_a,
      nb::sig("def run(self, *args: object, **kwargs: object) -> float"));
  c.def("output", &TrainingStep::Output, "name"_a);
  c.def(
      "evaluate",
      [](TrainingStep& self, const nb::args& args, const nb::kwargs& kwargs) {
        return ToTuple(self.Evaluate(Batch(self, args, kwargs)));
      },
      "args"_a, "kwargs"_a,
      nb::sig("def evaluate(self, *args: object, **kwargs: object) "
              "-> tuple[int, float, float, float]"));
  c.def(
      "predict",
      [](TrainingStep& self, const nb::args& args, const nb::kwargs& kwargs) {
        return self.Predict(Batch(self, args, kwargs, /*whole=*/false));
      },
      "args"_a, "kwargs"_a,
      nb::sig("def predict(self, *args: object, **kwargs: object) -> object"));
  c.def(
      "evaluate_data",
      [](TrainingStep& self, const std::string& data, const nb::dict& options) {
        return ToTuple(self.EvaluateData(data, options));
      },
      "data"_a, "options"_a,
      nb::sig("def evaluate_data(self, data: str, options: dict[str, object]) "
              "-> tuple[int, float, float, float]"));
  BindState(c);
}

Texts Compare(const ModelSource& model, const nb::sequence& example,
              const nb::dict& options, const std::vector<nb::dict>& variants,
              int rounds, int warmup, int64_t top) {
  return ToTuple(CompareVariants(
      Open(model), Arrays(example, "example"), ParseOptions(options), variants,
      {.rounds = rounds, .warmup = warmup, .top = top}));
}

}  // namespace

NB_MODULE(_fusor, module) {
  module.doc() = "The engine of the package fusor.";
  module.attr("version") = FUSOR_VERSION;
  BindError();
  BindBuilder(module);
  BindStep(module);
  BindTraining(module);
  module.def("compare", &Compare, "model"_a, "example"_a, "options"_a,
             "variants"_a, "rounds"_a, "warmup"_a, "top"_a,
             nb::sig("def compare(model: str | Builder, "
                     "example: collections.abc.Sequence[object], "
                     "options: dict[str, object], "
                     "variants: collections.abc.Sequence[dict[str, object]], "
                     "rounds: int, warmup: int, top: int) "
                     "-> tuple[str, str, str]"));
  module.def("models", &models::ArchNames,
             "Return the names of the built-in models.");
  module.def("backends", &runtime::AvailableBackends,
             "Return the names of the backend plug-ins.");
}

}  // namespace fusor::python
