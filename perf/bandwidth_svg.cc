#include "perf/bandwidth_svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/value_text.hpp"
#include "perf/format_text.hpp"

namespace noria::perf {
namespace {

// Told apart with any colour vision, and from white (Okabe and Ito's set without its yellow).
constexpr std::array<const char*, 7> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#e69f00", "#56b4e9", "#000000"};

// Where colours begin anew, lines are dashed, then dotted, and dots become rings.
constexpr std::array<const char*, 3> kDashes{"", " stroke-dasharray=\"7 4\"",
                                             " stroke-dasharray=\"2 3\""};

// How one series is drawn, in the plot and in the legend.
struct Look {
  const char* colour;
  const char* dash;
  bool has_rings;

  static Look of(size_t series) {
    const size_t round = series / kColours.size();
    return {kColours[series % kColours.size()], kDashes[std::min(round, kDashes.size() - 1)],
            round > 0};
  }
  std::string line() const {
    return std::string(" stroke=\"") + colour + "\" stroke-width=\"1.6\"" + dash;
  }
  std::string dot() const {
    const std::string paint = colour;
    return has_rings ? " fill=\"#ffffff\" stroke=\"" + paint + "\" stroke-width=\"1.4\""
                     : " fill=\"" + paint + "\"";
  }
};

constexpr double kWidth = 960, kLeft = 70, kRight = 24, kTop = 52, kPlotHeight = 400;
constexpr double kLegendRow = 20, kUnderPlot = 64;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kBottom = kTop + kPlotHeight;
constexpr double kYTicks = 6;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

// 1, 2 or 5 times a power of ten, so that about kYTicks of them reach `most`.
double tick_of(double most) {
  const double rough = std::max(most, 1e-6) / kYTicks;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0})
    if (rough <= step * power) return step * power;
  return 10 * power;
}

// A size as axes have it: "512", "4K", "64M", "2G".
std::string size_label(int power) {
  constexpr std::array<const char*, 7> kSuffixes{"", "K", "M", "G", "T", "P", "E"};
  return std::to_string(1 << (power % 10)) + kSuffixes[static_cast<size_t>(power / 10)];
}

class Picture {
 public:
  explicit Picture(const std::vector<BandwidthSeries>& series) : series_(series) {
    uint64_t least = UINT64_MAX, most = 1;
    double fastest = 0;
    for (const BandwidthSeries& one : series)
      for (const auto* points : {&one.measured, &one.modelled})
        for (const BandwidthPoint& point : *points) {
          least = std::min(least, std::max<uint64_t>(point.bytes, 1));
          most = std::max(most, point.bytes);
          fastest = std::max(fastest, point.gb_per_s);
        }
    first_power_ = static_cast<int>(std::floor(std::log2(static_cast<double>(least))));
    last_power_ = static_cast<int>(std::ceil(std::log2(static_cast<double>(most))));
    last_power_ = std::max(last_power_, first_power_ + 1);
    tick_ = tick_of(fastest);
    top_ = tick_ * std::max(std::ceil(fastest / tick_), 1.0);
  }

  std::string draw(const std::string& title) {
    const double height = kBottom + kUnderPlot + kLegendRow * static_cast<double>(rows_of_legend());
    text_ = format_text(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" "
        "height=\"%g\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#1d2126\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
        kWidth, height, kWidth, height);
    text_ += format_text("<text x=\"%g\" y=\"28\" font-size=\"17\">", kLeft) + escaped(title) +
             "</text>\n";
    axes();
    for (size_t i = 0; i < series_.size(); ++i) draw(series_[i], Look::of(i));
    legend();
    return text_ + "</svg>\n";
  }

 private:
  double x(uint64_t bytes) const {
    const double power = std::log2(static_cast<double>(std::max<uint64_t>(bytes, 1)));
    return kLeft + kPlotWidth * (power - first_power_) / (last_power_ - first_power_);
  }
  double y(double gb_per_s) const { return kBottom - kPlotHeight * gb_per_s / top_; }

  void axes() {
    const double right = kLeft + kPlotWidth;
    for (int i = 0; tick_ * i <= top_ * 1.0001; ++i) {
      const double at = y(tick_ * i);
      text_ += format_text(
          "<path d=\"M%g %.1fH%g\" stroke=\"#dfe2e0\"/><text x=\"%g\" y=\"%.1f\" "
          "text-anchor=\"end\">%g</text>\n",
          kLeft, at, right, kLeft - 8, at + 4, tick_ * i);
    }
    const int step = (last_power_ - first_power_) / 12 + 1;
    for (int power = first_power_; power <= last_power_; power += step) {
      const double at = kLeft + kPlotWidth * (power - first_power_) / (last_power_ - first_power_);
      text_ += format_text(
                   "<path d=\"M%.1f %gV%g\" stroke=\"#eef0ee\"/><text x=\"%.1f\" "
                   "y=\"%g\" text-anchor=\"middle\">",
                   at, kTop, kBottom, at, kBottom + 18) +
               size_label(power) + "</text>\n";
    }
    text_ += format_text("<path d=\"M%g %gV%gH%g\" fill=\"none\" stroke=\"#667078\"/>\n", kLeft,
                         kTop, kBottom, right);
    text_ += format_text(
        "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">message size "
        "(bytes, logarithmic)</text>\n",
        kLeft + kPlotWidth / 2, kBottom + 38);
    text_ += format_text(
        "<text transform=\"translate(18 %g) rotate(-90)\" "
        "text-anchor=\"middle\">bus bandwidth (GB/s)</text>\n",
        kTop + kPlotHeight / 2);
  }

  void draw(const BandwidthSeries& one, const Look& look) {
    if (!one.modelled.empty()) {
      std::string path;
      for (const BandwidthPoint& point : one.modelled)
        path +=
            format_text("%c%.1f %.1f", path.empty() ? 'M' : 'L', x(point.bytes), y(point.gb_per_s));
      text_ += "<path d=\"" + path + "\" fill=\"none\"" + look.line() + "/>\n";
    }
    text_ += "<g" + look.dot() + ">\n";
    for (const BandwidthPoint& point : one.measured)
      text_ += format_text("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\"/>\n", x(point.bytes),
                           y(point.gb_per_s));
    text_ += "</g>\n";
  }

  size_t rows_of_legend() const { return (series_.size() + 1) / 2; }
  void legend() {
    for (size_t i = 0; i < series_.size(); ++i) {
      const double left = kLeft + (i % 2 == 0 ? 0 : kPlotWidth / 2);
      const size_t row = i / 2;
      const double at = kBottom + kUnderPlot + kLegendRow * static_cast<double>(row);
      const Look look = Look::of(i);
      text_ +=
          format_text("<path d=\"M%g %gh26\"%s/><circle cx=\"%g\" cy=\"%g\" r=\"3.2\"%s/>", left,
                      at - 4, look.line().c_str(), left + 13, at - 4, look.dot().c_str()) +
          format_text("<text x=\"%g\" y=\"%g\">", left + 34, at) + escaped(series_[i].name) +
          "</text>\n";
    }
  }

  const std::vector<BandwidthSeries>& series_;
  int first_power_ = 0, last_power_ = 1;
  double tick_ = 1, top_ = 1;
  std::string text_;
};

}  // namespace

std::string bandwidth_svg(const std::string& title, const std::vector<BandwidthSeries>& series) {
  return Picture(series).draw(title);
}

}  // namespace noria::perf
