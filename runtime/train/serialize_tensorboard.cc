// TensorBoard event files: TFRecords of Event messages.

#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "runtime/train/event.pb.h"
#include "runtime/train/train_log.h"

namespace fusor::runtime {
namespace {

template <typename T>
std::string Bytes(T value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// Returns TFRecord's masked CRC, fit for data that contains CRCs itself.
std::string MaskedCrc(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return Bytes(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

std::string Record(const std::string& data) {
  const std::string length = Bytes(static_cast<uint64_t>(data.size()));
  return length + MaskedCrc(length) + data + MaskedCrc(data);
}

std::string FileName() {
  char host[256] = "host";
  gethostname(host, sizeof(host) - 1);
  static int files = 0;  // count of this process
  return fmt::format("events.out.tfevents.{}.{}.{}.{}",
                     static_cast<int64_t>(WallSeconds()), host, getpid(),
                     files++);
}

class TensorBoard : public TrainLog {
 public:
  TensorBoard(const std::string& folder, const TrainLogInfo& info)
      : file_(folder + "/" + FileName(), /*append=*/false),
        last_step_(info.start) {
    tensorboard::Event event;
    event.set_file_version("brain.Event:2");
    Write(event, 0);
  }

  void Interval(const IntervalReport& r) override {
    last_step_ = r.iteration;
    WriteScalars({{"train/loss", r.loss},
                  {"train/learning_rate", r.lr},
                  {"train/images_per_second", r.images_per_second},
                  {"train/data_wait", r.data_wait_share}});
  }
  void Evaluated(int64_t, const EvalReport& r) override {
    WriteScalars({{"val/loss", r.loss}});
    if (r.HasAccuracy()) {
      WriteScalars({{"val/top1", r.top1}, {"val/top5", r.top5}});
    }
  }

 private:
  void WriteScalars(const std::vector<std::pair<const char*, double>>& values) {
    tensorboard::Event event;
    for (const auto& [tag, value] : values) {
      auto* scalar = event.mutable_summary()->add_value();
      scalar->set_tag(tag);
      scalar->set_simple_value(static_cast<float>(value));
    }
    Write(event, last_step_);
  }
  void Write(tensorboard::Event& event, int64_t step) {
    event.set_wall_time(WallSeconds());
    event.set_step(step);
    file_.Write(Record(event.SerializeAsString()));
  }

  LogFile file_;
  int64_t last_step_;
};

}  // namespace

std::unique_ptr<TrainLog> OpenTensorBoard(const std::string& folder,
                                          const TrainLogInfo& info) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  FUSOR_CHECK(!error, kUsage, "cannot make the folder {}: {}", folder,
              error.message());
  return std::make_unique<TensorBoard>(folder, info);
}

}  // namespace fusor::runtime
