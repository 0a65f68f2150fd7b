#pragma once

#include <cstddef>

namespace fusor::runtime {

class Program;

// Observes each plan step of a running program, for debugging. With an
// observer, a program waits for each plan step to finish.
class StepObserver {
 public:
  virtual ~StepObserver();
  virtual void Before(const Program& program, size_t step) = 0;
  virtual void After(const Program& program, size_t step) = 0;
};

}  // namespace fusor::runtime
