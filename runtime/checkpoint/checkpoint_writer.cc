#include "runtime/checkpoint/checkpoint_writer.h"

#include <filesystem>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/signals_blocked.h"
#include "runtime/state_store.h"

namespace fusor::runtime {
namespace {

// Tolerates failures, because a full disk may be freed before the next save.
constexpr int kMaxFailures = 3;

}  // namespace

CheckpointWriter::CheckpointWriter(std::string folder, int keep)
    : path_(std::move(folder)), keep_(keep) {
  if (std::filesystem::exists(path_)) {
    folder_ = std::make_unique<CheckpointFolder>(path_);
  }
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { Work(); });
}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointWriter::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || busy_; });
    if (!busy_) return;
    lock.unlock();
    std::exception_ptr error;
    std::string reason;
    try {
      SaveNow();
    } catch (const std::exception& e) {
      error = std::current_exception();
      reason = e.what();
    }
    lock.lock();
    error_ = error;
    reason_ = reason;
    failures_ = error ? failures_ + 1 : 0;
    busy_ = false;
    changed_.notify_all();
  }
}

void CheckpointWriter::SaveNow() {
  if (folder_ == nullptr) folder_ = std::make_unique<CheckpointFolder>(path_);
  std::string saved = folder_->Save(header_, snapshot_);
  {
    const std::lock_guard lock(mutex_);
    saved_.push_back(std::move(saved));
  }
  folder_->Prune(keep_);
}

void CheckpointWriter::Wait(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return !busy_; });
}

void CheckpointWriter::Save(StateStore& state, const CheckpointHeader& header) {
  std::unique_lock lock(mutex_);
  Wait(lock);
  if (failures_ >= kMaxFailures) std::rethrow_exception(error_);
  if (error_) warnings_.push_back(reason_);
  TakeSnapshot(state, snapshot_);
  header_ = header;
  busy_ = true;
  changed_.notify_all();
}

void CheckpointWriter::Finish() {
  std::unique_lock lock(mutex_);
  Wait(lock);
  snapshot_ = {};
  if (error_) std::rethrow_exception(error_);
}

std::vector<std::string> CheckpointWriter::TakeSaved() {
  const std::lock_guard lock(mutex_);
  return std::exchange(saved_, {});
}

std::vector<std::string> CheckpointWriter::TakeWarnings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

}  // namespace fusor::runtime
