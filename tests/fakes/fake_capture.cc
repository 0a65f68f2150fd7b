#include "tests/fakes/fake_capture.h"

#include <algorithm>
#include <utility>

namespace fusor::test {

std::vector<const CUstream_st*> FakeCapture::streams() const {
  std::vector<const CUstream_st*> streams;
  for (const auto& [stream, branch] : branches_) streams.push_back(stream);
  return streams;
}

int FakeCapture::BranchOf(CUstream_st* stream) {
  const auto [it, added] = branches_.try_emplace(stream, num_branches());
  if (added) {
    num_ops_.push_back(0);
    clocks_.emplace_back();
  }
  return it->second;
}

FakeCapture::Op& FakeCapture::AddOp(CUstream_st* stream) {
  const int branch = BranchOf(stream);
  Clock& clock = clocks_[branch];
  clock.resize(num_ops_.size(), 0);
  clock[branch] = ++num_ops_[branch];
  return ops_.emplace_back(Op{branch});
}

void FakeCapture::Add(CUstream_st* stream, Work work, bool of_host) {
  Op& op = AddOp(stream);
  op.work = std::move(work);
  const Clock& clock = clocks_[op.branch];
  if (of_host) {
    host_functions_.emplace_back(op.branch, clock[op.branch]);
    return;
  }
  const auto precedes = [&](const auto& function) {
    const auto& [branch, number] = function;
    return branch < clock.size() && number <= clock[branch];
  };
  behind_ +=
      std::any_of(host_functions_.begin(), host_functions_.end(), precedes) ? 1
                                                                            : 0;
}

int FakeCapture::Record(CUstream_st* stream) {
  Op& op = AddOp(stream);
  records_.push_back(clocks_[op.branch]);
  op.records = static_cast<int>(records_.size()) - 1;
  return op.records;
}

void FakeCapture::Wait(CUstream_st* stream, int record) {
  Op& op = AddOp(stream);
  op.waits = record;
  Clock& clock = clocks_[op.branch];
  for (size_t b = 0; b < records_[record].size(); ++b) {
    clock[b] = std::max(clock[b], records_[record][b]);
  }
}

// Waits and records need not be joined.
bool FakeCapture::Joined() const {
  std::vector<int64_t> seen(num_ops_.size(), 0);
  const Clock& origin = clocks_[0];
  for (const Op& op : ops_) {
    const int64_t number = ++seen[op.branch];
    if (op.branch == 0 || !op.work) continue;
    const auto branch = static_cast<size_t>(op.branch);
    if (branch >= origin.size() || origin[branch] < number) return false;
  }
  return true;
}

void FakeCapture::Replay(EmulatedMachine& machine,
                         const std::vector<int>& queues) const {
  const HappeningPtr begun = machine.Record(queues[0]);
  for (size_t b = 1; b < queues.size(); ++b) machine.Wait(queues[b], begun);
  std::map<int, HappeningPtr> records;
  for (const Op& op : ops_) {
    const int queue = queues[static_cast<size_t>(op.branch)];
    if (op.work) machine.Add(queue, op.work);
    if (op.records >= 0) records[op.records] = machine.Record(queue);
    if (op.waits >= 0) machine.Wait(queue, records.at(op.waits));
  }
}

}  // namespace fusor::test
