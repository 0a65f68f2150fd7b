#include "tools/fusor/step_profile.h"

#include "runtime/data/batch_source.h"
#include "runtime/debug/profile.h"
#include "tools/fusor/data_source.h"
#include "tools/fusor/step_inputs.h"

namespace fusor::tools {

std::vector<double> ProfileSynthetic(const ModelFlags& model,
                                     runtime::Session& session, int program) {
  constexpr int kWarmup = 3, kRuns = 5;
  const DataFlags data{.synthetic = true};
  const auto source = OpenTraining(nullptr, data, model);
  session.InitializeState(0);
  runtime::SetInputs(session, program,
                     InputsOf(session.graph(program), source->Next(), 1e-3));
  for (int i = 0; i < kWarmup; ++i) session.Step(program);
  return runtime::MedianProfile(session, program, kRuns);
}

}  // namespace fusor::tools
