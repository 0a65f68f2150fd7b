#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace fusor::inspect {

// Replaces & < > by entities, for HTML and SVG text.
std::string EscapeMarkup(std::string_view text);

// Builds a Scalable Vector Graphics picture on a white background. Lengths are
// pixels from the top left corner. `style` is a string of attributes as in the
// file (`stroke="#1d2433"`). Browsers show tooltips under the pointer. Equal
// calls give equal bytes.
class Svg {
 public:
  Svg(double width, double height);

  void Line(double x1, double y1, double x2, double y2, std::string_view style);
  void Lines(std::span<const std::pair<double, double>> points,
             std::string_view style);
  void Rect(double x, double y, double width, double height,
            std::string_view style, std::string_view tooltip = "");
  void Circle(double x, double y, double radius, std::string_view style,
              std::string_view tooltip = "");
  // `anchor`: "start", "middle" or "end", the part of the text placed at x.
  void Text(double x, double y, std::string_view anchor, std::string_view text,
            int size = 12);

  std::string Finish() const;

 private:
  void Shape(std::string_view element, std::string_view style,
             std::string_view tooltip);

  std::string out_;
};

}  // namespace fusor::inspect
