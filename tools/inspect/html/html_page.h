#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fusor::inspect {

// HTML reports, each one self-contained file with style, scripts and data.
// Works without a network. page*.js render the data.

// Return page.css and the page*.js of this folder, embedded by the build.
std::string_view PageStyle();
std::span<const std::string_view> PageScripts();  // in order of loading

struct HtmlPage {
  std::string title;
  std::string lead;  // a sentence below the title; may be empty
  // Sections in order. Each is an object with "kind", "title" and the fields of
  // the function below that creates that kind.
  std::vector<nlohmann::json> sections;
};

// Returns a table. `head`: column titles. Cells are strings, or numbers, which
// are right-aligned. Rows beyond `shown` are collapsed.
nlohmann::json TableSection(std::string title, std::string note,
                            std::vector<std::string> head,
                            std::vector<std::vector<nlohmann::json>> rows,
                            size_t shown = 30);

// A row of GroupSection: its cells, one length per series of its bar, and the
// sections that it opens into.
struct RowGroup {
  std::vector<nlohmann::json> cells;
  std::vector<double> bar;
  std::vector<nlohmann::json> sections;
};

// Returns a table of rows that open into sections. The last column shows the
// bars, to one scale. `unit`: as for BarSection.
nlohmann::json GroupSection(std::string title, std::string note,
                            std::vector<std::string> head, std::string unit,
                            std::vector<std::string> series,
                            std::vector<RowGroup> groups);

// Returns a bar chart: one group per label, one bar per series,
// values[label][series].
nlohmann::json BarSection(std::string title, std::string unit,
                          std::vector<std::string> series,
                          std::vector<std::string> labels,
                          std::vector<std::vector<double>> values);

// Returns stacked graphs by model location and phase, of (name, GraphView).
nlohmann::json GraphSection(
    std::string title, std::string note,
    std::vector<std::pair<std::string, nlohmann::json>> variants);

// Returns a chart of the plans' memory over their schedules, of TimelineView.
nlohmann::json MemorySection(std::string title, std::string note,
                             std::vector<nlohmann::json> variants);

// Returns a plan's buffer offsets over its schedule, of TimelineView.
nlohmann::json MemoryMapSection(std::string title, std::string note,
                                nlohmann::json view);

// A picture with a caption; `detail` is its tooltip, `source` a data: address.
struct Thumbnail {
  std::string caption, detail, source;
};
nlohmann::json PictureSection(std::string title,
                              const std::vector<Thumbnail>& pictures);

// A key number.
struct Tile {
  std::string what, value, detail;
};
nlohmann::json TileSection(const std::vector<Tile>& tiles);

// Returns the page as HTML. Equal pages give equal bytes.
std::string Render(const HtmlPage& page);

// Replaces & < > by entities, for HTML and SVG text.
std::string EscapeMarkup(std::string_view text);

// Builds a Scalable Vector Graphics picture on a white background, or a dark
// one if the browser prefers dark pages. Lengths are pixels from the top left
// corner. The picture shrinks to the window's width. `style` is a string of
// attributes as in the file (`stroke="#1d2433"`). Browsers show tooltips under
// the pointer. Equal calls give equal bytes.
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
  // Centred text on a shape, whose colour is the same on dark pages.
  void TextOnShape(double x, double y, std::string_view text,
                   std::string_view fill);

  std::string Finish() const;

 private:
  void Shape(std::string_view element, std::string_view style,
             std::string_view tooltip);

  std::string out_;
};

}  // namespace fusor::inspect
