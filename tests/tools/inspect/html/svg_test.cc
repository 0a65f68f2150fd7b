#include <gmock/gmock.h>

#include "tools/inspect/html/html_page.h"

namespace fusor::inspect {
namespace {

using ::testing::HasSubstr;

TEST(Svg, HoldsTheShapesAndEscapesTexts) {
  Svg svg(100, 50);
  svg.Line(0, 1, 2, 3, "stroke=\"#000\"");
  const std::pair<double, double> points[] = {{1, 2}, {3, 4}};
  svg.Lines(points, "stroke=\"red\"");
  svg.Rect(1, 2, 3, 4, "fill=\"red\"");
  svg.Circle(5, 6, 7, "fill=\"blue\"", "a & b");
  svg.Text(1, 2, "end", "<script>");
  svg.TextOnShape(3, 4, "a < b", "#fff");
  const std::string text = svg.Finish();
  EXPECT_TRUE(text.starts_with("<svg "));
  EXPECT_TRUE(text.ends_with("</svg>\n"));
  EXPECT_THAT(text, HasSubstr("viewBox=\"0 0 100 50\""));
  EXPECT_THAT(text, HasSubstr("<line x1=\"0.0\" y1=\"1.0\" x2=\"2.0\""));
  EXPECT_THAT(text, HasSubstr("points=\"1.0,2.0 3.0,4.0 \""));
  EXPECT_THAT(text, HasSubstr("height=\"4.0\" fill=\"red\"/>"));
  EXPECT_THAT(text, HasSubstr("<title>a &amp; b</title></circle>"));
  EXPECT_THAT(text, HasSubstr("&lt;script&gt;"));
  EXPECT_THAT(text, HasSubstr("fill=\"#fff\">a &lt; b</text>"));
}

// The style replaces the colours by name.
TEST(Svg, HasColoursForDarkPagesAndNoFixedWidth) {
  Svg svg(100, 50);
  svg.Text(1, 2, "end", "ink");
  const std::string text = svg.Finish();
  EXPECT_THAT(text, HasSubstr("@media (prefers-color-scheme: dark)"));
  EXPECT_THAT(text, HasSubstr("fill=\"#1d2433\">ink</text>"));
  EXPECT_THAT(text, HasSubstr("[fill=\"#1d2433\"]:not(.on-shape)"));
  EXPECT_THAT(text, HasSubstr("width: 100%; max-width: 1900px"));
}

}  // namespace
}  // namespace fusor::inspect
