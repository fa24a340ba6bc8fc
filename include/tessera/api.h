// Marks what a shared library of Tessera exports.
#pragma once

#define TESSERA_API __attribute__((visibility("default")))
