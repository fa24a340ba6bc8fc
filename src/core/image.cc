#include "core/image.h"

#include <png.h>

#include <csetjmp>
#include <cstring>
#include <new>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace tessera {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

void on_error(png_structp png, png_const_charp message) {
  *static_cast<std::string*>(png_get_error_ptr(png)) = message;
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void append_bytes(png_structp png, png_bytep bytes, size_t count) {
  static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<const char*>(bytes), count);
}

void take_bytes(png_structp png, png_bytep bytes, size_t count) {
  auto& rest = *static_cast<std::string_view*>(png_get_io_ptr(png));
  if (count > rest.size()) png_error(png, "the file ends too early");
  std::memcpy(bytes, rest.data(), count);
  rest.remove_prefix(count);
}

// libpng reports errors by longjmp, so nothing may own memory between setjmp and the calls below.
bool write_all(png_structp png, png_infop info, const Image& image, png_textp text, int text_count) {
  if (setjmp(png_jmpbuf(png))) return false;
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.width), static_cast<png_uint_32>(image.height), 8,
               PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_set_text(png, info, text, text_count);
  png_write_info(png, info);
  for (int64_t y = 0; y < image.height; ++y) png_write_row(png, image.pixels.data() + y * image.width * 3);
  png_write_end(png, info);
  return true;
}

bool read_all(png_structp png, png_infop info) {
  if (setjmp(png_jmpbuf(png))) return false;
  constexpr int kToRgb =
      PNG_TRANSFORM_EXPAND | PNG_TRANSFORM_STRIP_16 | PNG_TRANSFORM_STRIP_ALPHA | PNG_TRANSFORM_GRAY_TO_RGB;
  png_read_png(png, info, kToRgb, nullptr);
  return true;
}

bool read_until_pixels(png_structp png, png_infop info) {
  if (setjmp(png_jmpbuf(png))) return false;
  png_read_info(png, info);
  return true;
}

// Holds libpng's two structs, which are freed with this object.
template <auto kDestroy>
struct PngStructs {
  explicit PngStructs(png_structp made) : png(made) {
    TESSERA_CHECK(png, "libpng has no memory or another version");
    info = png_create_info_struct(png);
    if (info) return;
    kDestroy(&png, &info);
    throw std::bad_alloc();
  }
  ~PngStructs() { kDestroy(&png, &info); }
  PngStructs(const PngStructs&) = delete;
  PngStructs& operator=(const PngStructs&) = delete;

  png_structp png;
  png_infop info = nullptr;
};

void destroy_reader(png_structpp png, png_infopp info) {
  png_destroy_read_struct(png, info, nullptr);
}

}  // namespace

std::string encode_png(const Image& image, const ImageText& text) {
  TESSERA_CHECK(image.height > 0 && image.width > 0 &&
                    static_cast<int64_t>(image.pixels.size()) == image.height * image.width * 3,
                "{} x {} image of {} bytes", image.height, image.width, image.pixels.size());
  ImageText owned;  // `chunks` points into it
  owned.reserve(text.size());
  std::vector<png_text> chunks(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const std::optional<std::string> latin1 = to_latin1(text[i].second);
    owned.emplace_back(text[i].first, latin1.value_or(text[i].second));
    chunks[i] = {};
    chunks[i].compression = latin1 ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    chunks[i].key = owned[i].first.data();
    chunks[i].text = owned[i].second.data();
    (latin1 ? chunks[i].text_length : chunks[i].itxt_length) = owned[i].second.size();
  }

  std::string message, bytes;
  const PngStructs<png_destroy_write_struct> writer(
      png_create_write_struct(PNG_LIBPNG_VER_STRING, &message, on_error, on_warning));
  png_set_write_fn(writer.png, &bytes, append_bytes, [](png_structp) {});
  const bool written =
      write_all(writer.png, writer.info, image, chunks.data(), static_cast<int>(chunks.size()));
  TESSERA_CHECK(written, "libpng: {}", message);
  return bytes;
}

PngFile read_png(const std::filesystem::path& path) {
  return decode_png(read_file(path, kMaxFileBytes), path.string());
}

namespace {

ImageText text_of(png_structp png, png_infop info) {
  ImageText text;
  png_textp chunks = nullptr;
  int count = 0;
  png_get_text(png, info, &chunks, &count);
  for (int i = 0; i < count; ++i) {
    const bool utf8 = chunks[i].compression >= PNG_ITXT_COMPRESSION_NONE;
    const std::string_view value(chunks[i].text, utf8 ? chunks[i].itxt_length : chunks[i].text_length);
    text.emplace_back(chunks[i].key, utf8 ? std::string(value) : from_latin1(value));
  }
  return text;
}

}  // namespace

ImageText decode_png_text(std::string_view bytes, const std::string& where) {
  std::string message;
  const PngStructs<destroy_reader> reader(
      png_create_read_struct(PNG_LIBPNG_VER_STRING, &message, on_error, on_warning));
  png_set_read_fn(reader.png, &bytes, take_bytes);
  if (!read_until_pixels(reader.png, reader.info)) input_error(where, "not a valid PNG file: {}", message);
  return text_of(reader.png, reader.info);
}

PngFile decode_png(std::string_view bytes, const std::string& where) {
  std::string_view rest = bytes;
  std::string message;
  const PngStructs<destroy_reader> reader(
      png_create_read_struct(PNG_LIBPNG_VER_STRING, &message, on_error, on_warning));
  const png_structp png = reader.png;
  const png_infop info = reader.info;
  png_set_read_fn(png, &rest, take_bytes);
  if (!read_all(png, info)) input_error(where, "not a valid PNG file: {}", message);

  PngFile file;
  file.image.height = png_get_image_height(png, info);
  file.image.width = png_get_image_width(png, info);
  const auto row_bytes = static_cast<size_t>(file.image.width * 3);
  png_bytepp rows = png_get_rows(png, info);
  for (int64_t y = 0; y < file.image.height; ++y) {
    file.image.pixels.insert(file.image.pixels.end(), rows[y], rows[y] + row_bytes);
  }
  file.text = text_of(png, info);
  return file;
}

}  // namespace tessera
