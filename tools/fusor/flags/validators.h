#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace fusor::tools {

// What a flag's value may be. Their messages say what was expected and what
// came, as "expected a whole number from 1 to 9, got 0".

CLI::Validator WholeNumber(int64_t low, int64_t high);
CLI::Validator WholeNumber(int64_t low);

// Finite.
CLI::Validator Number(double low, double high);
CLI::Validator Number(double low);

// One of these words; the message names the one that is nearest to what came.
CLI::Validator OneOf(std::vector<std::string> words);

}  // namespace fusor::tools
