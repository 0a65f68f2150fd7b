#pragma once

#include <string>
#include <string_view>

namespace fusor::ir {

struct Token {
  enum class Kind : uint8_t {
    kEnd,
    kValue,   // %name, %"any name"
    kWord,    // conv2d, f32, true
    kString,  // "text"
    kNumber,  // -1, 2.5e-3, 0x7f, -inf
    kSymbol,  // one of ( ) { } [ ] = , : @ < > or ->
  };
  Kind kind = Kind::kEnd;
  std::string text;  // without %, quotes and escapes
  int line = 1;      // of the first character, from 1
  int column = 1;
};

// Formats the token for error messages.
std::string ToString(const Token& token);

// Splits the text form of graphs (ir/io/printer.h) into tokens, with a
// lookahead of one. Throws kGraph, "source:line:column: ...", on invalid
// characters.
class Lexer {
 public:
  Lexer(std::string_view text, std::string_view source);

  const Token& current() const { return current_; }
  const Token& next() const { return next_; }
  void Advance();

  [[noreturn]] void Fail(const Token& at, const std::string& message) const;

 private:
  Token Scan();
  void SkipBlanks();
  void ScanString(Token& token);
  char ScanEscape(const Token& token);
  void ScanNumber(Token& token);
  char Look(size_t ahead = 0) const;
  char Take();

  const std::string_view text_;
  const std::string source_;
  size_t offset_ = 0;
  int line_ = 1;
  int column_ = 1;
  Token current_;
  Token next_;
};

}  // namespace fusor::ir
