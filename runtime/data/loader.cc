#include "runtime/data/loader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/host_memory.h"
#include "ir/support/signals_blocked.h"

namespace fusor::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Limit on consecutive unreadable samples; beyond it, skipping is pointless.
constexpr int kMaxReplacements = 100;

// More than the number of cores of any machine.
constexpr int kMaxThreads = 1024;

std::unique_ptr<const Dataset> CheckDataset(
    std::unique_ptr<const Dataset> dataset) {
  FUSOR_CHECK(dataset != nullptr, kUsage,
              "data loader: expected a data set, got null");
  return dataset;
}

}  // namespace

int64_t LoaderBytes(const LoaderOptions& options) {
  const int64_t side = options.transform.image_size;
  const int64_t sample =
      options.form ? SampleBytes(*options.form) : 3 * side * side;
  return (int64_t{options.prefetch} + 1) * options.batch_size * sample;
}

struct Loader::Worker {
  Augmenter augmenter;
  std::vector<uint8_t> storage;
  DataStats stats;  // of the current sample
};

Loader::Loader(std::unique_ptr<const Dataset> dataset,
               const LoaderOptions& options)
    : dataset_(CheckDataset(std::move(dataset))),
      options_(options),
      sampler_({.samples = dataset_->size(),
                .batch_size = options.batch_size,
                .rank = options.rank,
                .world_size = options.world_size,
                .training = options.training,
                .seed = options.seed,
                .repetitions = options.repetitions}),
      epoch_(options.start_epoch),
      index_(options.start_batch) {
  FUSOR_CHECK(options.threads > 0 && options.threads <= kMaxThreads &&
                  options.prefetch > 0,
              kUsage,
              "data loader: expected 1 to {} threads and 1 or more prefetched "
              "batches, got {} and {}",
              kMaxThreads, options.threads, options.prefetch);
  FUSOR_CHECK(options.start_epoch >= 0 && options.start_batch >= 0 &&
                  options.start_batch < batches_per_epoch(),
              kUsage,
              "data loader: expected a start batch below {}, got epoch {} "
              "batch {}",
              batches_per_epoch(), options.start_epoch, options.start_batch);
  FUSOR_ASSERT(
      (dataset_->tensors() != nullptr) == options.form.has_value() &&
          (!options.form ||
           std::ranges::equal(options.form->inputs, dataset_->tensors()->inputs,
                              {}, &InputForm::type)),
      "the form of a batch does not fit the data set");
  // Rejects an invalid transform here rather than in the workers.
  const Augmenter check(options.transform, options.seed);
  const int64_t bytes = LoaderBytes(options);
  const auto free = static_cast<int64_t>(FreeHostBytes());
  FUSOR_CHECK(bytes <= free, kOutOfMemory,
              "data loader: {} batches of {} samples need {} MiB, {} MiB are "
              "free",
              options.prefetch + 1, options.batch_size, bytes >> 20,
              free >> 20);
  for (int i = 0; i <= options.prefetch; ++i) {
    slots_.push_back(std::make_unique<Slot>(options));
  }
  const SignalsBlocked blocked;
  try {
    for (int i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this] { Work(); });
    }
  } catch (...) {
    Stop();
    throw;
  }
}

Loader::~Loader() { Stop(); }

void Loader::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Loader::Work() {
  Worker worker = {Augmenter(options_.transform, options_.seed), {}, {}};
  Ticket ticket;
  while (Take(ticket)) {
    std::exception_ptr error;
    worker.stats = {};
    try {
      Fill(ticket, worker);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    Slot& slot = *ticket.slot;
    if (error && (!slot.error || ticket.sample < slot.error_sample)) {
      slot.error = error;
      slot.error_sample = ticket.sample;
    }
    stats_.read_seconds += worker.stats.read_seconds;
    stats_.decode_seconds += worker.stats.decode_seconds;
    stats_.bytes_read += worker.stats.bytes_read;
    stats_.files_read += worker.stats.files_read;
    if (--slot.missing == 0) ready_.notify_one();
  }
}

// Takes the next sample; waits for a free slot. Returns false when stopping.
bool Loader::Take(Ticket& ticket) {
  std::unique_lock lock(mutex_);
  const auto slots = static_cast<int64_t>(slots_.size());
  work_.wait(lock, [&] {
    const int64_t oldest = next_batch_ - (holding_ ? 1 : 0);
    return stop_ || taken_batch_ < oldest + slots;
  });
  if (stop_) return false;
  Slot& slot = *slots_[taken_batch_ % slots];
  if (taken_sample_ == 0) Open(slot);
  ticket = {&slot, taken_sample_,
            sampler_.Copy(slot.batch.index, taken_sample_)};
  if (++taken_sample_ == options_.batch_size) {
    taken_sample_ = 0;
    ++taken_batch_;
  }
  return true;
}

// Assigns the next batch of the run to a free slot.
void Loader::Open(Slot& slot) {
  Batch& batch = slot.batch;
  batch.epoch = epoch_;
  batch.index = index_;
  slot.error = nullptr;
  try {
    sampler_.Batch(epoch_, index_, batch.samples);
  } catch (...) {
    slot.error = std::current_exception();
    slot.error_sample = -1;
    std::fill(batch.samples.begin(), batch.samples.end(), int64_t{-1});
  }
  if (++index_ == batches_per_epoch()) {
    index_ = 0;
    ++epoch_;
  }
  slot.missing = batch.size();
}

// Fills one sample of a batch. No other worker accesses that part of it.
void Loader::Fill(const Ticket& ticket, Worker& worker) {
  Batch& batch = ticket.slot->batch;
  int64_t& sample = batch.samples[ticket.sample];
  float& weight = batch.weights[ticket.sample];
  for (int tries = 0; sample >= 0 && tries <= kMaxReplacements; ++tries) {
    try {
      if (options_.form) {
        LoadTensors(sample, ticket, worker);
      } else {
        LoadImage(sample, ticket, worker);
      }
      weight = 1;
      return;
    } catch (const Error& error) {
      if (options_.bad_record == BadRecord::kFail ||
          error.code() != ErrorCode::kData) {
        throw;
      }
      NoteBadRecord(sample, error.what());
    }
    // Neighbours usually have the same class, so classes stay balanced.
    sample = options_.training ? (sample + 1) % dataset_->size() : -1;
  }
  FUSOR_CHECK(sample < 0, kData,
              "data loader: {} samples in a row are unreadable, last {}",
              kMaxReplacements + 1, dataset_->Name(sample));
  for (const std::span<uint8_t> input : batch.InputsOf(ticket.sample)) {
    std::ranges::fill(input, uint8_t{0});
  }
  std::ranges::fill(batch.PartOf(batch.labels, ticket.sample), 0);
  std::ranges::fill(batch.PartOf(batch.values, ticket.sample), 0.0F);
  batch.SetDeferred(ticket.sample, {});
  weight = 0;
}

void Loader::LoadTensors(int64_t sample, const Ticket& ticket,
                         Worker& worker) const {
  Batch& batch = ticket.slot->batch;
  const std::vector<std::span<uint8_t>> inputs = batch.InputsOf(ticket.sample);
  const ir::TensorType& type = dataset_->tensors()->target;
  worker.storage.resize(static_cast<size_t>(type.num_bytes()));
  const Clock::time_point begin = Clock::now();
  dataset_->ReadTensors(sample, inputs, worker.storage);
  worker.stats.read_seconds += SecondsSince(begin);
  worker.stats.bytes_read += std::ssize(worker.storage);
  ++worker.stats.files_read;

  const Clock::time_point convert = Clock::now();
  const std::string name = dataset_->Name(sample);
  for (size_t k = 0; k < inputs.size(); ++k) {
    worker.stats.bytes_read += std::ssize(inputs[k]);
    CheckTokens(options_.form->inputs[k], inputs[k], name);
  }
  ConvertTarget(*options_.form, type, worker.storage, name,
                batch.PartOf(batch.labels, ticket.sample),
                batch.PartOf(batch.values, ticket.sample));
  worker.stats.decode_seconds += SecondsSince(convert);
}

void Loader::LoadImage(int64_t sample, const Ticket& ticket,
                       Worker& worker) const {
  Batch& batch = ticket.slot->batch;
  const Clock::time_point begin = Clock::now();
  const Sample read = dataset_->Read(sample, worker.storage);
  worker.stats.read_seconds += SecondsSince(begin);
  worker.stats.bytes_read += static_cast<int64_t>(read.bytes.size());
  ++worker.stats.files_read;

  const Clock::time_point decode = Clock::now();
  const std::string name = dataset_->Name(sample);
  const auto reader = OpenImage(read.bytes, name, options_.limits);
  batch.SetDeferred(
      ticket.sample,
      worker.augmenter.Apply(*reader, name, batch.epoch, sample, ticket.copy,
                             batch.image(ticket.sample).data()));
  batch.labels[static_cast<size_t>(ticket.sample)] = read.label;
  worker.stats.decode_seconds += SecondsSince(decode);
}

void Loader::NoteBadRecord(int64_t sample, const std::string& message) {
  const std::lock_guard lock(mutex_);
  ++stats_.bad_records;
  if (named_.insert(sample).second) {
    warnings_.push_back("skipped: " + message);
  }
}

const Batch& Loader::Next() {
  const Clock::time_point begin = Clock::now();
  std::unique_lock lock(mutex_);
  if (holding_) {
    holding_ = false;
    work_.notify_all();
  }
  Slot& slot = *slots_[next_batch_ % static_cast<int64_t>(slots_.size())];
  ready_.wait(lock,
              [&] { return taken_batch_ > next_batch_ && slot.missing == 0; });
  stats_.wait_seconds += SecondsSince(begin);
  if (slot.error) std::rethrow_exception(slot.error);
  ++next_batch_;
  holding_ = true;
  return slot.batch;
}

DataStats Loader::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::vector<std::string> Loader::TakeWarnings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

}  // namespace fusor::runtime
