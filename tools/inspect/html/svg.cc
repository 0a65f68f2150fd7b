#include <fmt/core.h>

#include "tools/inspect/html/html_page.h"

namespace fusor::inspect {

namespace {

// Replaces the colours of text, lines and background, as page.css does. Texts
// are outlined in the colour of the background, except those on a shape.
constexpr const char* kStyle = R"(<style>
text { paint-order: stroke; stroke: #fff; stroke-width: 3px; }
text.on-shape { stroke: none; }
@media (prefers-color-scheme: dark) {
  svg { background: #171b24; }
  text { stroke: #171b24; }
  [fill="#fff"]:not(text) { fill: #171b24; }
  [fill="#1d2433"]:not(.on-shape) { fill: #dfe4ee; }
  [stroke="#fff"] { stroke: #171b24; }
  [stroke="#e4e7ee"] { stroke: #2a3140; }
  [stroke="#1d2433"] { stroke: #dfe4ee; }
}
</style>
)";

}  // namespace

std::string EscapeMarkup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

Svg::Svg(double width, double height)
    : out_(fmt::format(
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" "
          "height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
          "style=\"width: 100%; max-width: 1900px; height: auto\" "
          "font-family=\"sans-serif\" font-size=\"12\">\n{2}"
          "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
          width, height, kStyle)) {}

void Svg::Line(double x1, double y1, double x2, double y2,
               std::string_view style) {
  out_ += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n",
      x1, y1, x2, y2, style);
}

void Svg::Lines(std::span<const std::pair<double, double>> points,
                std::string_view style) {
  out_ += "<polyline points=\"";
  for (const auto& [x, y] : points) out_ += fmt::format("{:.1f},{:.1f} ", x, y);
  out_ += fmt::format("\" fill=\"none\" {}/>\n", style);
}

void Svg::Shape(std::string_view element, std::string_view style,
                std::string_view tooltip) {
  out_ += fmt::format("<{} {}", element, style);
  if (tooltip.empty()) {
    out_ += "/>\n";
  } else {
    out_ += fmt::format("><title>{}</title></{}>\n", EscapeMarkup(tooltip),
                        element.substr(0, element.find(' ')));
  }
}

void Svg::Rect(double x, double y, double width, double height,
               std::string_view style, std::string_view tooltip) {
  Shape(fmt::format(
            "rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"",
            x, y, width, height),
        style, tooltip);
}

void Svg::Circle(double x, double y, double radius, std::string_view style,
                 std::string_view tooltip) {
  Shape(fmt::format("circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"", x, y,
                    radius),
        style, tooltip);
}

void Svg::Text(double x, double y, std::string_view anchor,
               std::string_view text, int size) {
  out_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" "
      "font-size=\"{}\" fill=\"#1d2433\">{}</text>\n",
      x, y, anchor, size, EscapeMarkup(text));
}

void Svg::TextOnShape(double x, double y, std::string_view text,
                      std::string_view fill) {
  out_ += fmt::format(
      "<text class=\"on-shape\" x=\"{:.1f}\" y=\"{:.1f}\" "
      "text-anchor=\"middle\" fill=\"{}\">{}</text>\n",
      x, y, fill, EscapeMarkup(text));
}

std::string Svg::Finish() const { return out_ + "</svg>\n"; }

}  // namespace fusor::inspect
