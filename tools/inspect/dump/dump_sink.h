#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

namespace fusor::codegen {

// Where dumped files go.
class DumpSink {
 public:
  virtual ~DumpSink();
  // `path`: relative, parts separated by '/', each a FileName; once for each.
  virtual void Write(const std::string& path, std::string_view bytes) = 0;
};

// Into a folder, which is made where there is none: each file under a temporary
// name and then renamed. Throws kUsage where it cannot write, at once when the
// folder refuses or holds a dump already: two in one place would be one that
// never was.
class FolderSink : public DumpSink {
 public:
  explicit FolderSink(std::string folder);
  void Write(const std::string& path, std::string_view bytes) override;

 private:
  const std::string folder_;
};

// One after the other into a stream, which must outlive this, each under a line
// "// path", the path after `prefix`.
class StreamSink : public DumpSink {
 public:
  explicit StreamSink(std::ostream& stream, std::string prefix = "")
      : stream_(stream), prefix_(std::move(prefix)) {}
  void Write(const std::string& path, std::string_view bytes) override;

 private:
  std::ostream& stream_;
  const std::string prefix_;
};

// The name with '_' for what is not a letter, digit, '.', '_' or '-'. A long
// one is cut and ends with a hash of the whole, so that it stays unique and
// there is room for numbers and suffixes in the 255 bytes of a file's name.
std::string FileName(std::string_view name);

}  // namespace fusor::codegen
