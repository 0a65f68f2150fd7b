#pragma once

// libfusor is built with hidden visibility; FUSOR_EXPORT marks what tools and
// backend plug-ins use. An exception that crosses a plug-in border needs it.
#define FUSOR_EXPORT __attribute__((visibility("default")))
