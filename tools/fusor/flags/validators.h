#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace fusor::tools {

// Validators of flag values. Messages name the expected and actual value, e.g.
// "expected a whole number from 1 to 9, got 0".

CLI::Validator WholeNumber(int64_t low, int64_t high);
CLI::Validator WholeNumber(int64_t low);

// Finite numbers.
CLI::Validator Number(double low, double high);
CLI::Validator Number(double low);

// One of these words. The message names the closest one.
CLI::Validator OneOf(std::vector<std::string> words);

}  // namespace fusor::tools
