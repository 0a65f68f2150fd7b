#pragma once

// Replaces operator new and delete of the program. Include it in one file only.
// Every allocation calls OnAllocation, which the program defines.

#include <cstdlib>
#include <new>

void OnAllocation();

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  OnAllocation();
  return std::malloc(bytes);
}
void* operator new(size_t bytes) {
  void* memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
