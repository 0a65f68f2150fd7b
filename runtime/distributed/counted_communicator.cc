#include "runtime/distributed/counted_communicator.h"

#include <utility>

#include "runtime/backend/backend.h"

namespace fusor::runtime {
namespace {

class CountedCommunicator : public Communicator {
 public:
  CountedCommunicator(std::unique_ptr<Communicator> communicator,
                      std::function<void()> begins)
      : communicator_(std::move(communicator)), begins_(std::move(begins)) {}

  int rank() const override { return communicator_->rank(); }
  int world_size() const override { return communicator_->world_size(); }
  std::string description() const override {
    return communicator_->description();
  }
  std::unique_ptr<Memory> Allocate(Device& device, size_t bytes) override {
    return communicator_->Allocate(device, bytes);
  }
  void Prepare(const Collective& collective) override {
    communicator_->Prepare(collective);
  }
  int64_t Start(const Collective& collective, Stream& stream) override {
    begins_();
    return communicator_->Start(collective, stream);
  }
  void Wait(int64_t number, Stream& stream) override {
    communicator_->Wait(number, stream);
  }
  std::unique_ptr<Executable> Capture(
      Stream& stream, const std::function<void()>& work) override {
    return communicator_->Capture(stream, work);
  }
  void Check() override { communicator_->Check(); }
  void Abort(const std::string& why) noexcept override {
    communicator_->Abort(why);
  }
  std::vector<CollectiveTime> TakeTimes() override {
    return communicator_->TakeTimes();
  }

 private:
  const std::unique_ptr<Communicator> communicator_;
  const std::function<void()> begins_;
};

}  // namespace

std::unique_ptr<Communicator> CountCollectives(
    std::unique_ptr<Communicator> communicator, std::function<void()> begins) {
  return std::make_unique<CountedCommunicator>(std::move(communicator),
                                               std::move(begins));
}

}  // namespace fusor::runtime
