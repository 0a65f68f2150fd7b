#include "runtime/train/training_loop.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "runtime/program.h"
#include "runtime/train/step_results.h"

namespace fusor::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Adds a step's loss to the hash of the previous ones (0: none).
uint64_t LossHash(uint64_t before, double loss) {
  return HashCombine(before == 0 ? kHashSeed : before,
                     std::bit_cast<uint64_t>(loss));
}

// Indices of a program's inputs that the loop feeds; -1 if absent.
struct Feed {
  std::vector<int> inputs;  // see ir::ModelInputName
  int labels, targets, weights, colours, boxes, lr, key, step, mixup;
  std::array<int, 4> box;

  explicit Feed(const Program& program) {
    const auto find = [&](const char* name) {
      return program.HasInput(name) ? program.FindInput(name) : -1;
    };
    inputs = program.FindModelInputs();
    targets = find("targets");
    labels = targets < 0 ? program.FindInput("labels") : find("labels");
    weights = find("weights");
    colours = find("augment_colour");
    boxes = find("augment_box");
    lr = find("lr");
    key = find("random_key");
    step = find("step");
    mixup = find("mixup");
    box = {find("cutmix_left"), find("cutmix_top"), find("cutmix_right"),
           find("cutmix_bottom")};
  }

  // The inputs must not change until `copied` has occurred.
  void SetBatch(Program& program, const Batch& batch, Event& copied,
                int64_t slot = 0) const {
    const auto set = [&]<typename T>(int input, const std::vector<T>& values) {
      if (input < 0) return;
      program.SetInput(input, values.data(), values.size() * sizeof(T), slot);
    };
    FUSOR_ASSERT(inputs.size() == batch.inputs(), "{} inputs of a batch of {}",
                 inputs.size(), batch.inputs());
    for (size_t k = 0; k < inputs.size(); ++k) {
      program.SetInput(inputs[k], batch.input(k).data(),
                       batch.input(k).size_bytes(), copied, slot);
    }
    set(labels, batch.labels);
    set(targets, batch.values);
    set(weights, batch.weights);
    set(colours, batch.colours);
    set(boxes, batch.boxes);
  }
};

class Loop {
 public:
  Loop(Session& session, Program& program, BatchSource& source,
       const TrainOptions& options, const TrainObserver& observer)
      : session_(session),
        program_(program),
        source_(source),
        options_(options),
        observer_(observer),
        feed_(program),
        updates_per_epoch_(
            UpdatesPerEpoch(source.batches_per_epoch(), options.micro_batches)),
        position_(options.start),
        loss_output_(program.FindOutput("loss")),
        overflows_(session, program, options.overflow_limit,
                   observer.diagnosis),
        results_(session, /*over_ranks=*/true, options.graph_steps),
        copied_(session.CreateEvent()) {
    FUSOR_ASSERT(options.micro_batches == 1 || options.accumulate != nullptr,
                 "no program for the first {} of {} micro-batches",
                 options.micro_batches - 1, options.micro_batches);
    if (options.micro_batches > 1) {
      accumulating_.emplace(*options.accumulate);
      accumulated_loss_ = options.accumulate->FindOutput("loss");
    }
    FUSOR_ASSERT(options.graph_steps == 1 || options.micro_batches == 1,
                 "graphs of {} steps of {} micro-batches", options.graph_steps,
                 options.micro_batches);
    // Observers look at each step.
    program.SetGroup(session.is_observed() ? 1 : options.graph_steps);
    total_ = options.epochs * updates_per_epoch_;
    if (options.iterations >= 0) total_ = std::min(total_, options.iterations);
    if (options.run_steps >= 0) {
      total_ = std::min(total_, options.start.step + options.run_steps);
    }
    const auto steps =
        static_cast<size_t>(std::max<int64_t>(total_ - position_.step, 0));
    report_.step_ms.reserve(steps);
    report_.losses.reserve(steps);
    const int64_t key = static_cast<int64_t>(options.seed);
    for (int64_t slot = 0; slot < program.group(); ++slot) {
      SetScalar(program, feed_.key, key, slot);
    }
    if (accumulating_) SetScalar(*options.accumulate, accumulating_->key, key);
  }

  TrainReport Run(const std::function<std::optional<EvalReport>()>& evaluate) {
    interval_start_ = Clock::now();
    start_stats_ = interval_stats_ = source_.stats();
    saved_ = position_.step;
    if (position_.evaluation_due) Evaluate(evaluate);
    while (position_.step < total_ && !report_.reached_top1) {
      if (StopRequested()) {
        report_.interrupted = true;
        break;
      }
      const int64_t steps = NextGroup();
      Enqueue(position_.step, steps);
      const int64_t per_epoch = updates_per_epoch_;
      position_.step += steps;
      const int64_t done = position_.step;
      const bool epoch_ends = done % per_epoch == 0;
      const bool last = done == total_;
      position_.evaluation_due =
          evaluate && options_.eval_every > 0 &&
          (last || (epoch_ends && done / per_epoch % options_.eval_every == 0));
      const bool save = EndsSavedSteps(done - 1);
      const bool waits = position_.evaluation_due || save || last;
      Complete(waits ? 0 : results_.lag());
      if (position_.evaluation_due) Evaluate(evaluate);
      if (save) Save();
    }
    Complete(0);
    if (saved_ != position_.step) Save();
    Finish();
    return std::move(report_);
  }

 private:
  template <typename T>
  void SetScalar(Program& program, int input, T value, int64_t slot = 0) {
    if (input >= 0) program.SetInput(input, &value, sizeof(value), slot);
  }

  // Several ranks stop once all of them know of a request.
  bool StopRequested() const {
    if (session_.world_size() > 1) return stop_agreed_;
    return observer_.stop && observer_.stop();
  }

  // Returns the number of micro-batches of an update.
  int64_t BatchesOf(int64_t step) const {
    const int64_t in_epoch = step % updates_per_epoch_;
    return std::min(
        options_.micro_batches,
        source_.batches_per_epoch() - in_epoch * options_.micro_batches);
  }

  // `number`: index of the batch over all ranks, for random numbers.
  void SetBatch(Program& program, const Feed& feed, const Batch& batch,
                double lr, int64_t number, int64_t slot) {
    feed.SetBatch(program, batch, *copied_, slot);
    SetScalar(program, feed.lr, static_cast<float>(lr), slot);
    SetScalar(program, feed.step, static_cast<int32_t>(number), slot);
    if (feed.mixup < 0) return;
    const Mix mix =
        DrawMix(options_.mix, options_.seed, number, batch.image_size());
    SetScalar(program, feed.mixup, static_cast<float>(mix.share), slot);
    const int32_t box[] = {mix.left, mix.top, mix.right, mix.bottom};
    for (size_t i = 0; i < feed.box.size(); ++i) {
      SetScalar(program, feed.box[i], box[i], slot);
    }
  }

  // Host data of a step whose results are pending.
  struct Enqueued {
    int64_t step = 0;
    double lr = 0;
    double waited = 0;
    int64_t images = 0;
    bool overflow = false;  // its results include the overflow state
  };

  bool EndsInterval(int64_t step) const {
    const int64_t done = step + 1;
    return done % options_.print_every == 0 || done % updates_per_epoch_ == 0 ||
           done == total_;
  }

  // Returns whether the state after this step is saved.
  bool EndsSavedSteps(int64_t step) const {
    const int64_t every =
        options_.save_every > 0 ? options_.save_every : updates_per_epoch_;
    return (step + 1) % every == 0;
  }

  // Returns the number of steps to enqueue at once: all of the program's group,
  // or 1 if the state is needed before the group ends.
  int64_t NextGroup() const {
    const int64_t first = position_.step;
    if (first + program_.group() > total_) return 1;
    for (int64_t step = first; step + 1 < first + program_.group(); ++step) {
      const bool needed = EndsSavedSteps(step) ||
                          (step + 1) % updates_per_epoch_ == 0 ||
                          (overflows_.active() && EndsInterval(step));
      if (needed) return 1;
    }
    return program_.group();
  }

  void Enqueue(int64_t first, int64_t steps) {
    results_.Begin();
    bool overflow = false;
    for (int64_t step = first; step < first + steps; ++step) {
      const int64_t slot = first + steps - 1 - step;
      enqueued_.push_back(
          {.step = step,
           .lr = LearningRate(options_.lr, step),
           .overflow = overflows_.active() && EndsInterval(step)});
      overflow = enqueued_.back().overflow;
      if (steps > 1) {
        FeedBatch(program_, feed_, enqueued_.back(), /*i=*/0, slot);
      } else {
        EnqueueBatches(enqueued_.back());
      }
    }
    if (steps > 1) {
      program_.RunGroup();
      for (int64_t slot = steps - 1; slot >= 0; --slot) {
        results_.AddLoss(program_, loss_output_, slot);
      }
    }
    if (overflow) overflows_.Add(results_);
    results_.End(
        session_.world_size() > 1 && observer_.stop && observer_.stop(), steps);
  }

  // Enqueues the micro-batches of an update.
  void EnqueueBatches(Enqueued& e) {
    const int64_t batches = BatchesOf(e.step);
    for (int64_t i = 0; i < batches; ++i) {
      const bool last = i + 1 == batches;
      Program& program = last ? program_ : *options_.accumulate;
      FeedBatch(program, last ? feed_ : *accumulating_, e, i, /*slot=*/0);
      program.Run();
      results_.AddLoss(program, last ? loss_output_ : accumulated_loss_);
    }
  }

  // Sets the inputs of micro-batch `i` of an update.
  void FeedBatch(Program& program, const Feed& feed, Enqueued& e, int64_t i,
                 int64_t slot) {
    const Clock::time_point asked = Clock::now();
    if (feeding_) session_.Await(*copied_);
    feeding_ = true;
    const Batch& batch = source_.Next();
    e.waited += Seconds(asked, Clock::now());
    SetBatch(program, feed, batch, e.lr,
             (e.step * options_.micro_batches + i) * session_.world_size() +
                 session_.rank(),
             slot);
    e.images += batch.size() * session_.world_size();
  }

  // Completes steps until at most `pending` groups are pending.
  void Complete(int64_t pending) {
    while (results_.pending() > pending) {
      for (const StepResults::Result& result : results_.Take()) {
        const Enqueued e = enqueued_.front();
        enqueued_.pop_front();
        CompleteStep(e, result);
      }
    }
  }

  void CompleteStep(const Enqueued& e, const StepResults::Result& result) {
    stop_agreed_ = result.stop;
    const double loss = result.loss;
    report_.losses.push_back(loss);
    position_.loss_hash = LossHash(position_.loss_hash, loss);
    report_.step_ms.push_back(1e3 * result.seconds);
    ++report_.steps;
    images_ += e.images;
    interval_images_ += e.images;
    interval_wait_ += e.waited;
    ++interval_steps_;
    if (observer_.step) {
      observer_.step({.step = e.step + 1,
                      .epoch = e.step / updates_per_epoch_,
                      .loss = loss,
                      .lr = e.lr,
                      .seconds = result.seconds,
                      .data_wait_seconds = e.waited});
    }
    if (observer_.warning) {
      for (const std::string& text : source_.TakeWarnings()) {
        observer_.warning(text);
      }
    }
    if (observer_.progress) observer_.progress(e.step + 1, total_);
    // With a dynamic loss scale, the update of this step is skipped.
    FUSOR_CHECK(std::isfinite(loss) || overflows_.active(), kDiverged,
                "training diverged: loss is {} at iteration {} (learning rate "
                "{}): lower --lr, warm up longer (--warmup) or clip gradients "
                "(--clip-grad-norm)",
                loss, e.step + 1, e.lr);
    if (EndsInterval(e.step)) ReportInterval(e, result.others);
  }

  void Evaluate(const std::function<std::optional<EvalReport>()>& evaluate) {
    const std::optional<EvalReport> result = evaluate();
    if (result) {
      position_.evaluation_due = false;
      position_.best_top1 = std::max(position_.best_top1, result->top1);
      report_.reached_top1 = result->top1 >= options_.stop_at_top1;
      if (observer_.evaluated) {
        observer_.evaluated(position_.step / updates_per_epoch_, *result);
      }
    }
    interval_start_ = Clock::now();
    interval_stats_ = source_.stats();
  }

  void Save() {
    if (observer_.save) observer_.save(position_);
    saved_ = position_.step;
  }

  void ReportInterval(const Enqueued& e, std::span<const double> state) {
    const Clock::time_point now = Clock::now();
    const double seconds = Seconds(interval_start_, now);
    const DataStats stats = source_.stats();
    std::optional<OverflowMonitor::Reading> overflow;
    if (e.overflow) {
      overflow = overflows_.Read(state);
      if (!report_.overflow) report_.overflow.emplace();
      report_.overflow->scale = overflow->scale;
      report_.overflow->skipped += overflow->skipped;
    }
    if (observer_.interval) {
      IntervalReport interval;
      interval.steps = interval_steps_;
      interval.epoch = e.step / updates_per_epoch_;
      interval.iteration = e.step + 1;
      interval.iterations = total_;
      interval.seconds = seconds;
      interval.loss = report_.losses.back();
      interval.images_per_second =
          static_cast<double>(interval_images_) / seconds;
      interval.lr = e.lr;
      interval.data_wait_share = interval_wait_ / seconds;
      interval.data = stats - interval_stats_;
      interval.overflow = overflow;
      observer_.interval(interval);
    }
    interval_start_ = now;
    interval_steps_ = 0;
    interval_images_ = 0;
    interval_wait_ = 0;
    interval_stats_ = stats;
  }

  void Finish() {
    report_.end = position_;
    if (report_.steps == 0) return;
    report_.first_loss = report_.losses.front();
    report_.last_loss = report_.losses.back();
    double ms = 0;
    for (double step : report_.step_ms) ms += step;
    report_.seconds = ms / 1e3;
    // Excludes the first step, which touches memory and fills caches.
    const double warm = report_.steps > 1 ? ms - report_.step_ms.front() : ms;
    const double images =
        static_cast<double>(images_) *
        static_cast<double>(report_.steps > 1 ? report_.steps - 1
                                              : report_.steps) /
        static_cast<double>(report_.steps);
    report_.images_per_second = images / (warm / 1e3);
    report_.data = source_.stats() - start_stats_;
  }

  Session& session_;
  Program& program_;
  BatchSource& source_;
  const TrainOptions& options_;
  const TrainObserver& observer_;
  const Feed feed_;
  const int64_t updates_per_epoch_;
  TrainPosition position_;
  std::optional<Feed> accumulating_;  // of the accumulating program
  int accumulated_loss_ = -1;
  const int loss_output_;
  OverflowMonitor overflows_;
  int64_t total_ = 0;
  int64_t saved_ = 0;  // step of the last save
  int64_t images_ = 0;
  bool stop_agreed_ = false;  // several ranks have agreed to stop
  StepResults results_;
  std::unique_ptr<Event> copied_;  // images of the last batch are copied
  bool feeding_ = false;           // a batch has been fed
  std::deque<Enqueued> enqueued_;  // steps pending in results_
  Clock::time_point interval_start_;
  int64_t interval_steps_ = 0;
  int64_t interval_images_ = 0;
  double interval_wait_ = 0;
  DataStats start_stats_;
  DataStats interval_stats_;  // at the start of the interval
  TrainReport report_;
};

}  // namespace

int64_t UpdatesPerEpoch(int64_t batches, int64_t micro_batches) {
  return (batches + micro_batches - 1) / micro_batches;
}

TrainReport Train(Session& session, Program& program, BatchSource& source,
                  const TrainOptions& options, const TrainObserver& observer,
                  const std::function<std::optional<EvalReport>()>& evaluate) {
  return Loop(session, program, source, options, observer).Run(evaluate);
}

namespace {

std::optional<EvalReport> EvaluateEpoch(Session& session, Program& program,
                                        BatchSource& source,
                                        const EvaluateOptions& options) {
  const Feed feed(program);
  const int loss = program.FindOutput("loss_sum");
  const std::vector<int> outputs = AccuracyOutputs(program);
  EvalSums sums;
  const int64_t batches = source.batches_per_epoch();
  const std::unique_ptr<Event> copied = session.CreateEvent();
  StepResults results(session, /*over_ranks=*/false);
  const auto take = [&](int64_t pending) {
    while (results.pending() > pending) {
      const StepResults::Result result = results.Take().front();
      sums.loss += result.loss;
      for (size_t i = 0; i < outputs.size(); ++i) {
        sums.outputs[i] += result.others[i];
      }
    }
  };
  for (int64_t b = 0; b < batches; ++b) {
    if (session.world_size() == 1 && options.stop && options.stop()) {
      return std::nullopt;
    }
    results.Begin();
    if (b > 0) session.Await(*copied);
    const Batch& batch = source.Next();
    feed.SetBatch(program, batch, *copied);
    program.Run();
    for (float weight : batch.weights) sums.samples += weight;
    results.AddLoss(program, loss);
    for (const int output : outputs) results.AddOutput(program, output);
    results.End();
    // `done` reads outputs before the next batch overwrites them.
    take(options.done || b + 1 == batches ? 0 : results.lag());
    if (options.done) options.done(batch);
    if (options.progress) options.progress(b + 1, batches);
  }
  return MeanOverRanks(session, program, sums);
}

}  // namespace

std::vector<int> AccuracyOutputs(const Program& program) {
  std::vector<int> outputs;
  for (const char* name : {"top1", "top5", "counted"}) {
    if (program.HasOutput(name)) outputs.push_back(program.FindOutput(name));
  }
  return outputs;
}

EvalReport MeanOverRanks(Session& session, const Program& program,
                         const EvalSums& sums) {
  const auto& [top1, top5, counted] = sums.outputs;
  std::array<double, 5> all{sums.samples, sums.loss, top1, top5, counted};
  session.AllReduce(all);
  FUSOR_CHECK(all[0] > 0, kData, "evaluation: no readable image");
  const double count = program.HasOutput("counted") ? all[4] : all[0];
  FUSOR_CHECK(count > 0, kData, "evaluation: no label that counts");
  const bool accuracy = program.HasOutput("top1");
  return {.images = static_cast<int64_t>(all[0]),
          .loss = all[1] / count,
          .top1 = accuracy ? all[2] / count : std::nan(""),
          .top5 = accuracy ? all[3] / count : std::nan("")};
}

std::optional<EvalReport> Evaluate(Session& session, Program& program,
                                   BatchSource& source,
                                   const EvaluateOptions& options) {
  session.state().Show(options.view);
  session.state().Broadcast(StateSubset::kStatistics);
  auto report = EvaluateEpoch(session, program, source, options);
  session.state().Show(ParameterView::kCurrent);
  return report;
}

}  // namespace fusor::runtime
