// Measures a lower bound of a training step on the CPU: the time that oneDNN
// takes for all convolutions of a network (forward, backward data, backward
// weights), and nothing else. Activations are channel-blocked or, for bf16 on
// AMX, channels-last, and oneDNN chooses the format of weights. For stride-1
// 3x3 layers, the faster of direct and Winograd counts. Each primitive runs by
// itself in a loop, so a whole step with the same library can hardly be faster
// than the sum.

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using dnnl::algorithm;
using dnnl::memory;

// A square convolution with "same" padding of kernel / 2.
struct ConvShape {
  int64_t in, out, image, kernel, stride;

  auto operator<=>(const ConvShape&) const = default;

  int64_t ResultImage() const { return (image - 1) / stride + 1; }
  bool IsFirst() const { return in == 3; }
  int64_t ForwardMacs() const {  // per image
    return in * out * kernel * kernel * ResultImage() * ResultImage();
  }
};

using Layers = std::map<ConvShape, int>;  // shape -> number of layers

Layers ResNet50() {
  Layers layers;
  layers[{3, 64, 224, 7, 2}]++;
  int64_t in = 64, image = 56;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      const int64_t stride = block == 0 && stage > 0 ? 2 : 1;
      layers[{in, width, image, 1, 1}]++;
      layers[{width, width, image, 3, stride}]++;
      layers[{width, 4 * width, image / stride, 1, 1}]++;
      if (block == 0) layers[{in, 4 * width, image, 1, stride}]++;
      in = 4 * width;
      image /= stride;
    }
  }
  return layers;
}

Layers Vgg16() {
  Layers layers;
  int64_t in = 3, image = 224;
  const std::pair<int64_t, int> stages[] = {
      {64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}};
  for (const auto& [width, count] : stages) {
    for (int i = 0; i < count; ++i) {
      layers[{in, width, image, 3, 1}]++;
      in = width;
    }
    image /= 2;
  }
  return layers;
}

// A primitive and its memory.
struct Task {
  dnnl::primitive primitive;
  std::unordered_map<int, memory> arguments;
  std::string implementation;
};

class Floor {
 public:
  Floor(int64_t batch, int iterations, memory::data_type dtype)
      : batch_(batch),
        iterations_(iterations),
        dtype_(dtype),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        format_(FormatOf(dtype)) {}

  // Milliseconds of a layer's three primitives. The first layer of a network
  // has no backward data.
  struct Times {
    double forward = 0, backward_data = 0, backward_weights = 0;
  };

  Times Measure(const ConvShape& shape, algorithm how) {
    const auto dst = DstDesc(shape);
    const dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, how, SrcDesc(shape),
         WeightsDesc(shape), dst, Strides(shape), Padding(shape),
         Padding(shape)},
        engine_);
    Times times;
    times.forward = Time({dnnl::convolution_forward(forward),
                          {{DNNL_ARG_SRC, Filled(forward.src_desc())},
                           {DNNL_ARG_WEIGHTS, Filled(forward.weights_desc())},
                           {DNNL_ARG_DST, Filled(forward.dst_desc())}},
                          forward.impl_info_str()});
    if (!shape.IsFirst()) {
      const dnnl::convolution_backward_data::primitive_desc data(
          {how, SrcDesc(shape), WeightsDesc(shape), dst, Strides(shape),
           Padding(shape), Padding(shape)},
          engine_, forward);
      times.backward_data =
          Time({dnnl::convolution_backward_data(data),
                {{DNNL_ARG_DIFF_SRC, Filled(data.diff_src_desc())},
                 {DNNL_ARG_WEIGHTS, Filled(data.weights_desc())},
                 {DNNL_ARG_DIFF_DST, Filled(data.diff_dst_desc())}},
                data.impl_info_str()});
    }
    const dnnl::convolution_backward_weights::primitive_desc weights(
        {how, SrcDesc(shape), WeightsDesc(shape), dst, Strides(shape),
         Padding(shape), Padding(shape)},
        engine_, forward);
    times.backward_weights =
        Time({dnnl::convolution_backward_weights(weights),
              {{DNNL_ARG_SRC, Filled(weights.src_desc())},
               {DNNL_ARG_DIFF_WEIGHTS, Filled(weights.diff_weights_desc())},
               {DNNL_ARG_DIFF_DST, Filled(weights.diff_dst_desc())}},
              weights.impl_info_str()});
    return times;
  }

 private:
  static memory::format_tag FormatOf(memory::data_type dtype) {
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    if (dtype == memory::data_type::bf16 &&
        isa >= dnnl::cpu_isa::avx512_core_amx) {
      return memory::format_tag::nhwc;
    }
    return isa >= dnnl::cpu_isa::avx512_core ? memory::format_tag::nChw16c
                                             : memory::format_tag::nChw8c;
  }

  // Images may have any format, since an engine would write them in it.
  memory::desc SrcDesc(const ConvShape& s) const {
    return {{batch_, s.in, s.image, s.image},
            dtype_,
            s.IsFirst() ? memory::format_tag::any : format_};
  }
  memory::desc DstDesc(const ConvShape& s) const {
    return {{batch_, s.out, s.ResultImage(), s.ResultImage()}, dtype_, format_};
  }
  memory::desc WeightsDesc(const ConvShape& s) const {
    return {{s.out, s.in, s.kernel, s.kernel}, dtype_, memory::format_tag::any};
  }
  static memory::dims Strides(const ConvShape& s) {
    return {s.stride, s.stride};
  }
  static memory::dims Padding(const ConvShape& s) {
    return {s.kernel / 2, s.kernel / 2};
  }

  // Values of ordinary size, to avoid denormals.
  memory Filled(const memory::desc& desc) const {
    memory out(desc, engine_);
    auto* bytes = static_cast<char*>(out.get_data_handle());
    // A bf16 is the upper half of an f32.
    const size_t size = dtype_ == memory::data_type::f32 ? 4 : 2;
    for (size_t i = 0; i < desc.get_size() / size; ++i) {
      const auto mixed = static_cast<uint32_t>(i) * 2654435761u;
      const float value = 0.01f * (static_cast<float>(mixed >> 24) - 127.5f);
      const auto bits = std::bit_cast<uint32_t>(value) >> (32 - 8 * size);
      std::memcpy(bytes + i * size, &bits, size);
    }
    return out;
  }

  // Returns the median time of an execution in milliseconds.
  double Time(const Task& task) {
    if (task.implementation.find("ref") != std::string::npos) {
      throw std::runtime_error("oneDNN chose a reference implementation: " +
                               task.implementation);
    }
    std::vector<double> times;
    for (int i = -1; i < iterations_; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      task.primitive.execute(stream_, task.arguments);
      stream_.wait();
      const std::chrono::duration<double, std::milli> elapsed =
          std::chrono::steady_clock::now() - begin;
      if (i >= 0) times.push_back(elapsed.count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  int64_t batch_;
  int iterations_;
  memory::data_type dtype_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  memory::format_tag format_;  // of activations
};

struct Sums {
  Floor::Times best, direct;
  int winograd = 0;  // primitives for which Winograd was faster
  int convolutions = 0;
  int64_t forward_macs = 0;  // per image
};

double Total(const Floor::Times& t) {
  return t.forward + t.backward_data + t.backward_weights;
}

void Add(Floor::Times& sum, const Floor::Times& t, int count) {
  sum.forward += count * t.forward;
  sum.backward_data += count * t.backward_data;
  sum.backward_weights += count * t.backward_weights;
}

// Keeps the smaller of each pair. Returns how often that is `other`.
int TakeFaster(Floor::Times& times, const Floor::Times& other) {
  int taken = 0;
  for (double Floor::Times::*part :
       {&Floor::Times::forward, &Floor::Times::backward_data,
        &Floor::Times::backward_weights}) {
    if (other.*part < times.*part) {
      times.*part = other.*part;
      ++taken;
    }
  }
  return taken;
}

Sums MeasureAll(const Layers& layers, Floor& floor) {
  Sums sums;
  for (const auto& [shape, count] : layers) {
    Floor::Times times = floor.Measure(shape, algorithm::convolution_direct);
    Add(sums.direct, times, count);
    if (shape.kernel == 3 && shape.stride == 1 && !shape.IsFirst()) {
      try {
        sums.winograd +=
            count *
            TakeFaster(times,
                       floor.Measure(shape, algorithm::convolution_winograd));
      } catch (const dnnl::error& e) {
        // There is no Winograd without AVX-512, nor in oneDNN from 3.2 on.
        if (e.status != dnnl_unimplemented) throw;
      }
    }
    Add(sums.best, times, count);
    sums.convolutions += count;
    sums.forward_macs += count * shape.ForwardMacs();
  }
  return sums;
}

nlohmann::json Report(const std::string& arch, int64_t batch,
                      const Sums& sums) {
  const dnnl_version_t* version = dnnl_version();
  const double total = Total(sums.best);
  return {
      {"program", "conv_floor"},
      {"arch", arch},
      {"batch_size", batch},
      {"threads", omp_get_max_threads()},
      {"versions",
       {{"onednn", fmt::format("{}.{}.{}", version->major, version->minor,
                               version->patch)}}},
      {"images_per_second", 1e3 * static_cast<double>(batch) / total},
      {"step_ms", {{"median", total}}},
      {"forward_ms", sums.best.forward},
      {"backward_data_ms", sums.best.backward_data},
      {"backward_weights_ms", sums.best.backward_weights},
      {"direct_only_ms", Total(sums.direct)},
      {"winograd_primitives", sums.winograd},
      {"convolutions", sums.convolutions},
      {"forward_macs", sums.forward_macs},
  };
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Times the convolutions of a network through oneDNN; prints one "
      "JSON line. OMP_NUM_THREADS sets the threads.");
  std::string arch = "resnet50";
  int64_t batch = 16;
  int iterations = 5;
  std::string dtype = "fp32";
  app.add_option("--arch", arch)->check(CLI::IsMember({"resnet50", "vgg16"}));
  app.add_option("--dtype", dtype)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--batch-size", batch)->check(CLI::PositiveNumber);
  app.add_option("--iterations", iterations)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    Floor floor(
        batch, iterations,
        dtype == "bf16" ? memory::data_type::bf16 : memory::data_type::f32);
    const Sums sums = MeasureAll(arch == "vgg16" ? Vgg16() : ResNet50(), floor);
    fmt::print("{}\n", Report(arch, batch, sums).dump());
  } catch (const std::exception& e) {
    fmt::print(stderr, "conv_floor: {}\n", e.what());
    return 1;
  }
  return 0;
}
