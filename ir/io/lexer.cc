#include "ir/io/lexer.h"

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool IsNameCharacter(char c) {
  return IsLetter(c) || IsDigit(c) || c == '.' || c == '$';
}

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Formats a byte of the input for a one-line message.
std::string Printable(char c) {
  if (c > ' ' && c <= '~') return fmt::format("'{}'", c);
  return fmt::format("byte 0x{:02x}", static_cast<unsigned char>(c));
}

}  // namespace

std::string ToString(const Token& token) {
  constexpr size_t kLongest = 40;
  std::string text = token.text.substr(0, kLongest);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (text.size() < token.text.size()) text += "..";
  switch (token.kind) {
    case Token::Kind::kEnd:
      return "the end";
    case Token::Kind::kValue:
      return "%" + text;
    case Token::Kind::kString:
      return "\"" + text + "\"";
    default:
      return "'" + text + "'";
  }
}

Lexer::Lexer(std::string_view text, std::string_view source)
    : text_(text), source_(source) {
  Advance();
  Advance();
}

void Lexer::Advance() {
  current_ = std::move(next_);
  next_ = Scan();
}

void Lexer::Fail(const Token& at, const std::string& message) const {
  ThrowError(ErrorCode::kGraph,
             fmt::format("{}:{}:{}: {}", source_, at.line, at.column, message));
}

// Returns the character `ahead` positions further; NUL past the end.
char Lexer::Look(size_t ahead) const {
  return offset_ + ahead < text_.size() ? text_[offset_ + ahead] : '\0';
}

char Lexer::Take() {
  const char c = text_[offset_++];
  if (c == '\n') {
    ++line_;
    column_ = 1;
  } else {
    ++column_;
  }
  return c;
}

void Lexer::SkipBlanks() {
  while (offset_ < text_.size()) {
    const char c = Look();
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      Take();
    } else if (c == '/' && Look(1) == '/') {
      while (offset_ < text_.size() && Look() != '\n') Take();
    } else {
      return;
    }
  }
}

Token Lexer::Scan() {
  SkipBlanks();
  Token token;
  token.line = line_;
  token.column = column_;
  if (offset_ == text_.size()) return token;
  const char c = Look();
  if (c == '%') {
    token.kind = Token::Kind::kValue;
    Take();
    if (Look() == '"') {
      ScanString(token);
    } else {
      while (IsNameCharacter(Look())) token.text += Take();
      if (token.text.empty()) Fail(token, "expected a name after '%'");
    }
  } else if (c == '"') {
    token.kind = Token::Kind::kString;
    ScanString(token);
  } else if (IsLetter(c)) {
    token.kind = Token::Kind::kWord;
    while (IsNameCharacter(Look())) token.text += Take();
  } else if (IsDigit(c) || (c == '-' && Look(1) != '>')) {
    token.kind = Token::Kind::kNumber;
    ScanNumber(token);
  } else {
    token.kind = Token::Kind::kSymbol;
    if (std::string_view("(){}[]=,:@<>-").find(c) == std::string_view::npos) {
      Fail(token, "unexpected " + Printable(c));
    }
    token.text = Take();
    if (c == '-') token.text += Take();
  }
  return token;
}

void Lexer::ScanString(Token& token) {
  Take();  // the opening quote
  while (Look() != '"') {
    if (offset_ == text_.size() || Look() == '\n') {
      Fail(token, "expected a closing '\"' on this line");
    }
    const char c = Take();
    token.text += c == '\\' ? ScanEscape(token) : c;
  }
  Take();
}

char Lexer::ScanEscape(const Token& token) {
  if (offset_ == text_.size()) Fail(token, "expected a closing '\"'");
  const char c = Take();
  if (c == '"' || c == '\\') return c;
  if (c == 'n') return '\n';
  const int high = HexDigit(Look());
  const int low = HexDigit(Look(1));
  if (c != 'x' || high < 0 || low < 0) {
    Fail(token, "expected \\\", \\\\, \\n or \\xHH in the string");
  }
  Take();
  Take();
  return static_cast<char>(high * 16 + low);
}

// Reads everything that looks like a number; the parser validates it.
void Lexer::ScanNumber(Token& token) {
  if (Look() == '-') token.text += Take();
  for (;;) {
    const char c = Look();
    const char before = token.text.empty() ? '\0' : token.text.back();
    const bool sign =
        (c == '+' || c == '-') && (before == 'e' || before == 'E');
    if (!IsLetter(c) && !IsDigit(c) && c != '.' && !sign) break;
    token.text += Take();
  }
}

}  // namespace fusor::ir
