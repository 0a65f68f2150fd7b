#include "tools/python/training.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/checkpoint/weights.h"
#include "tools/fusor/flags/arguments.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/program_setup.h"
#include "tools/fusor/setup/rank_run.h"
#include "tools/python/options.h"
#include "tools/python/state_arrays.h"
#include "tools/python/training_step.h"

namespace fusor::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using runtime::EvalReport;
using runtime::StepReport;

// Write callback of a stdio stream.
ssize_t WriteToPython(void*, const char* bytes, size_t size) {
  const nb::gil_scoped_acquire acquire;
  try {
    const nb::object out = nb::module_::import_("sys").attr("stdout");
    if (!out.is_none()) {
      out.attr("write")(nb::str(bytes, size));
      out.attr("flush")();
    }
  } catch (nb::python_error& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) {
      PyErr_SetInterrupt();  // for the next check
    } else {
      error.discard_as_unraisable("fusor.train");
    }
  }
  return static_cast<ssize_t>(size);
}

FILE* OpenText(bool prints) {
  if (!prints) return tools::OpenNullStream();
  FILE* stream = fopencookie(nullptr, "w",
                             {.read = nullptr,
                              .write = WriteToPython,
                              .seek = nullptr,
                              .close = nullptr});
  FUSOR_CHECK(stream != nullptr, kDevice, "cannot open a stream");
  std::setvbuf(stream, nullptr, _IOLBF, BUFSIZ);
  return stream;
}

// Calls `parse` and translates its errors.
template <typename Parse>
void Translated(const CLI::App& app, const Parse& parse) {
  try {
    parse();
  } catch (const CLI::ParseError& error) {
    ThrowError(ErrorCode::kUsage,
               WithKeywords(tools::DescribeUsageError(app, error)));
  } catch (const Error& error) {
    throw Error(error.code(), WithKeywords(error.what()));
  }
}

struct Parsed {
  tools::TrainFlags flags;
  std::optional<runtime::ProgramFile> file;
};

// Parses as `fusor train` does.
Parsed ParseTraining(const std::string& model, const std::string& data,
                     const nb::dict& keywords) {
  Parsed parsed;
  CLI::App app("", "fusor");
  CLI::App* command = app.add_subcommand("train");
  command->set_help_flag();
  tools::AddTrainFlags(*command, parsed.flags);
  tools::TakeLastValues(app);
  std::vector<std::string> words{"train", ModelWord(model)};
  for (std::string& word : WordsOf(*command, keywords)) {
    words.push_back(std::move(word));
  }
  if (!data.empty()) words.push_back(data);
  Translated(app, [&] {
    tools::ParseArguments(app, words);
    tools::SettleTrainFlags(*command, parsed.flags);
  });
  return parsed;
}

// Parses as `fusor run` does.
Parsed ParseRun(runtime::ProgramFile file, const std::string& path,
                const std::string& data, const nb::dict& keywords) {
  Parsed parsed;
  tools::TrainFlags given;
  bool recompile = false;
  CLI::App app("", "run");
  app.set_help_flag();
  tools::AddProgramRunFlags(app, given);
  app.add_flag("--recompile", recompile);
  std::vector<std::string> words = WordsOf(app, keywords);
  if (!data.empty()) words.push_back(data);
  Translated(app, [&] {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    tools::CheckValues(app);
    std::erase_if(words, [](const std::string& word) {
      return word.starts_with("--recompile=");
    });
    parsed.flags = tools::ProgramFlags(file, path, words);
    if (!recompile) tools::UseProgram(file, path, parsed.flags);
  });
  if (!recompile) parsed.file = std::move(file);
  return parsed;
}

Parsed Parse(const std::string& model, const std::string& data,
             const nb::dict& keywords) {
  if (!runtime::IsProgramFile(model)) {
    return ParseTraining(model, data, keywords);
  }
  return ParseRun(runtime::ReadProgramFile(model), model, data, keywords);
}

}  // namespace

std::string ModelWord(const std::string& model) {
  std::error_code unreadable;
  const std::vector<std::string> names = models::ArchNames();
  const bool file = std::count(names.begin(), names.end(), model) == 0 &&
                    !tools::IsExported(model) &&
                    (model.find('/') != std::string::npos ||
                     std::filesystem::exists(model, unreadable));
  return (file ? "--module=" : "--arch=") + model;
}

Training::Training(const std::string& model, const std::string& data,
                   const nb::dict& keywords, TrainingCallbacks callbacks)
    : callbacks_(std::move(callbacks)),
      text_(OpenText(callbacks_.prints), &std::fclose) {
  CheckProcess();
  Parsed parsed = Parse(model, data, keywords);
  try {
    const nb::gil_scoped_release release;
    run_ = std::make_unique<tools::TrainingRun>(
        std::move(parsed.flags), std::move(parsed.file), Hooks());
    run_->Run();
  } catch (const Error& error) {
    throw Error(error.code(), WithKeywords(error.what()));
  }
  callbacks_ = {};  // they may refer to this object
  if (interrupt_.has_value()) throw std::move(*interrupt_);
}

tools::TrainingHooks Training::Hooks() {
  tools::TrainingHooks hooks;
  hooks.text = text_.get();
  hooks.keeps_state = true;
  hooks.compile = {StopOnKeyboardInterrupt()};
  hooks.observer.stop = [this] { return Stopped(); };
  if (!callbacks_.step.is_none()) {
    hooks.observer.step = [this](const StepReport& report) {
      Call([&] { callbacks_.step(report); });
    };
  }
  if (!callbacks_.evaluated.is_none()) {
    hooks.observer.evaluated = [this](int64_t epoch, const EvalReport& report) {
      Call([&] { callbacks_.evaluated(epoch, report); });
    };
  }
  return hooks;
}

void Training::Call(const std::function<void()>& callback) {
  const nb::gil_scoped_acquire acquire;
  try {
    callback();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_KeyboardInterrupt)) throw;
    interrupt_.emplace(std::move(error));
  }
}

bool Training::Stopped() {
  const nb::gil_scoped_acquire acquire;
  if (!interrupt_.has_value() && PyErr_CheckSignals() != 0) {
    interrupt_.emplace();
  }
  return interrupt_.has_value();
}

std::string Training::Result() const { return run_->result().dump(); }

std::vector<std::string> Training::StateNames() const {
  return python::StateNames(run_->session().state());
}

nb::dict Training::State() { return StateArrays(run_->session().state()); }

void Training::SaveWeights(const std::string& path) {
  const nb::gil_scoped_release release;
  runtime::SaveWeights(run_->session().state(), path);
}

namespace {

void BindStepReport(nb::module_& module) {
  nb::class_<StepReport> c(module, "StepReport",
                           "A training step: what on_step gets.");
  c.def_ro("step", &StepReport::step, "Number of the step, from 1.");
  c.def_ro("epoch", &StepReport::epoch, "Number of the epoch, from 1.");
  c.def_ro("loss", &StepReport::loss, "Mean loss, over all ranks' images.");
  c.def_ro("lr", &StepReport::lr, "Learning rate.");
  c.def_ro("seconds", &StepReport::seconds,
           "Time of the step in seconds, data loading included.");
  c.def_ro("data_wait_seconds", &StepReport::data_wait_seconds,
           "Time that the step waited for data, in seconds.");
}

void BindEvalReport(nb::module_& module) {
  nb::class_<EvalReport> c(module, "EvalReport",
                           "An evaluation: what on_evaluation gets.");
  c.def_ro("images", &EvalReport::images, "Number of images.");
  c.def_ro("loss", &EvalReport::loss, "Mean loss per image.");
  c.def_ro("top1", &EvalReport::top1,
           "Share of images, 0 to 1, whose label is the top class; NaN if "
           "targets are values.");
  c.def_ro("top5", &EvalReport::top5,
           "Share of images, 0 to 1, whose label is among the first five.");
}

void BindRun(nb::module_& module) {
  nb::class_<Training> c(module, "TrainingRun",
                         "The run behind fusor.Training.");
  c.def(
      "__init__",
      [](Training* self, const std::string& model, const std::string& data,
         const nb::dict& options, nb::object on_step, nb::object on_evaluation,
         bool verbose) {
        new (self)
            Training(model, data, options,
                     {std::move(on_step), std::move(on_evaluation), verbose});
      },
      "model"_a, "data"_a, "options"_a, "on_step"_a.none(),
      "on_evaluation"_a.none(), "verbose"_a,
      nb::sig("def __init__(self, model: str, data: str, "
              "options: dict[str, object], "
              "on_step: collections.abc.Callable[[StepReport], object] | None, "
              "on_evaluation: "
              "collections.abc.Callable[[int, EvalReport], object] | None, "
              "verbose: bool) -> None"));
  c.def("result", &Training::Result);
  c.def("state_names", &Training::StateNames);
  c.def("state", &Training::State,
        nb::sig("def state(self) -> dict[str, object]"));
  c.def("save_weights", &Training::SaveWeights, "path"_a);
}

}  // namespace

void BindTraining(nb::module_& module) {
  BindStepReport(module);
  BindEvalReport(module);
  BindRun(module);
  module.def("model_word", &ModelWord, "model"_a,
             "Return the flag of the command line that selects a model.");
}

}  // namespace fusor::python
