#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/inspect/html/html_page.h"
#include "tools/inspect/report/plan_view.h"

namespace fusor::inspect {
namespace {

// As in page.css.
const std::map<std::string, std::string> kColours = {
    {"matrix", "#e07f2f"},  {"fusion", "#2f6bd8"}, {"kernel", "#8fb1ec"},
    {"library", "#4f9d69"}, {"copy", "#c74444"},   {"op", "#9aa1b0"}};

struct Dot {
  double intensity;  // flops per byte
  double gflops;     // GFLOP/s
  const StepCost* cost;
};

bool Computes(const StepCost& cost) {
  return cost.flops > 0 && cost.bytes > 0 && cost.us() > 0 &&
         cost.kind != "copy";
}

// A logarithmic axis in whole decades. Dots outside are drawn at the edge.
struct Axis {
  double low, high;  // log10
  double At(double value) const {
    return std::clamp((std::log10(value) - low) / (high - low), 0.0, 1.0);
  }
};

// Steps shorter than this share of the longest do not extend the axes.
constexpr double kSeen = 0.01;

class Picture {
 public:
  Picture(const PlanReport& report, const ir::Target& target)
      : target_(target) {
    for (const StepCost& cost : report.steps) {
      if (!Computes(cost)) continue;
      dots_.push_back({static_cast<double>(cost.flops) / cost.bytes,
                       static_cast<double>(cost.flops) / cost.us() / 1e3,
                       &cost});
      longest_ = std::max(longest_, cost.us());
    }
    // Draw large dots first, so that small ones stay visible.
    std::stable_sort(
        dots_.begin(), dots_.end(),
        [](const Dot& a, const Dot& b) { return a.cost->us() > b.cost->us(); });
    SetAxes();
  }

  std::string Draw(const std::string& title) {
    svg_.Text(kLeft, 26, "start", title, 16);
    Grid();
    Roof();
    for (const Dot& dot : dots_) DrawDot(dot);
    Limits();
    Legend();
    return svg_.Finish();
  }

 private:
  static constexpr double kLeft = 70, kTop = 50, kWidth = 780, kHeight = 440;
  void SetAxes() {
    double low_x = Ridge() / 3, high_x = Ridge() * 3;
    double low_y = target_.peak_gflops_f32 / 30;
    double high_y = target_.peak_gflops_f32 * 1.5;
    for (const Dot& dot : dots_) {
      if (dot.cost->us() < kSeen * longest_) continue;
      low_x = std::min(low_x, dot.intensity);
      high_x = std::max(high_x, dot.intensity);
      low_y = std::min(low_y, dot.gflops);
      high_y = std::max(high_y, dot.gflops);
    }
    x_ = {std::floor(std::log10(low_x)), std::ceil(std::log10(high_x))};
    y_ = {std::floor(std::log10(low_y)), std::ceil(std::log10(high_y))};
  }

  // Returns the flops per byte above which arithmetic is the limit.
  double Ridge() const {
    return target_.peak_gflops_f32 / std::max(target_.memory_gb_per_s, 1e-9);
  }

  double X(double intensity) const { return kLeft + x_.At(intensity) * kWidth; }
  double Y(double gflops) const { return kTop + (1 - y_.At(gflops)) * kHeight; }

  void Grid() {
    constexpr const char* kFaint = "stroke=\"#e4e7ee\"";
    for (int d = static_cast<int>(x_.low); d <= static_cast<int>(x_.high);
         ++d) {
      const double x = X(std::pow(10, d));
      svg_.Line(x, kTop, x, kTop + kHeight, kFaint);
      svg_.Text(x, kTop + kHeight + 16, "middle",
                fmt::format("{:g}", std::pow(10, d)));
    }
    for (int d = static_cast<int>(y_.low); d <= static_cast<int>(y_.high);
         ++d) {
      const double y = Y(std::pow(10, d));
      svg_.Line(kLeft, y, kLeft + kWidth, y, kFaint);
      svg_.Text(kLeft - 6, y + 4, "end", fmt::format("{:g}", std::pow(10, d)));
    }
    svg_.Text(kLeft + kWidth / 2, kTop + kHeight + 36, "middle",
              "arithmetic intensity, FLOP/byte");
    svg_.Text(kLeft, kTop - 8, "start", "GFLOP/s");
  }

  void Roof() {
    constexpr const char* kStyle = "stroke=\"#1d2433\" stroke-width=\"2\"";
    const double peak = target_.peak_gflops_f32;
    // The slope enters the plot at its left or bottom edge.
    const double start = std::max(
        std::pow(10, x_.low),
        std::pow(10, y_.low) / std::max(target_.memory_gb_per_s, 1e-9));
    svg_.Line(X(start), Y(start * target_.memory_gb_per_s), X(Ridge()), Y(peak),
              kStyle);
    svg_.Line(X(Ridge()), Y(peak), kLeft + kWidth, Y(peak), kStyle);
  }

  // Labels the two parts of the roof, drawn after the dots to stay readable.
  void Limits() {
    const double peak = target_.peak_gflops_f32;
    svg_.Text(kLeft + kWidth - 4, Y(peak) - 6, "end",
              fmt::format("{:g} GFLOP/s in f32", peak));
    svg_.Text(X(Ridge()) - 12, Y(peak) - 6, "end",
              fmt::format("{:g} GB/s of memory", target_.memory_gb_per_s));
  }

  void DrawDot(const Dot& dot) {
    const double radius = 2.5 + 11 * std::sqrt(dot.cost->us() / longest_);
    svg_.Circle(X(dot.intensity), Y(dot.gflops), radius,
                fmt::format("fill=\"{}\" fill-opacity=\"0.55\" stroke=\"#fff\"",
                            kColours.at(dot.cost->kind)),
                fmt::format("{}: {:.1f} us, {:.1f} GFLOP/s, {:.0f} % of "
                            "the limit",
                            dot.cost->op_class, dot.cost->us(), dot.gflops,
                            100 * dot.cost->share()));
  }

  void Legend() {
    const std::pair<const char*, const char*> names[] = {
        {"matrix", "convolution, matmul"},
        {"fusion", "fusion"},
        {"kernel", "kernel of one op"},
        {"library", "other library call"}};
    double x = kLeft;
    for (const auto& [kind, name] : names) {
      const bool present = std::any_of(
          dots_.begin(), dots_.end(),
          [k = kind](const Dot& dot) { return dot.cost->kind == k; });
      if (!present) continue;
      svg_.Circle(x + 6, kTop + kHeight + 60, 6,
                  fmt::format("fill=\"{}\"", kColours.at(kind)));
      svg_.Text(x + 18, kTop + kHeight + 64, "start", name);
      x += 40 + 7.5 * static_cast<double>(std::string(name).size());
    }
    svg_.Text(kLeft, kTop + kHeight + 84, "start",
              "area: time of the step; steps outside are drawn at the edge");
  }

  const ir::Target& target_;
  std::vector<Dot> dots_;
  double longest_ = 1e-9;
  Axis x_{}, y_{};
  Svg svg_{kLeft + kWidth + 30, kTop + kHeight + 100};
};

}  // namespace

std::string RooflineSvg(const PlanReport& report, const ir::Target& target,
                        const std::string& title) {
  return Picture(report, target).Draw(title);
}

}  // namespace fusor::inspect
