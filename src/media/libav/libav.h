// FFmpeg's libraries: owners of their structs, their messages, and files that they read and write in memory.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libswscale/swscale.h>
}

#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "media/source.h"

namespace tessera::media {

// Frees with a function that takes a pointer to the pointer.
template <auto kFree>
struct FreeAt {
  template <typename T>
  void operator()(T* owned) const {
    kFree(&owned);
  }
};
// Frees with a function that takes the pointer.
template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* owned) const {
    kFree(owned);
  }
};
void free_io(AVIOContext* io);

using Packet = std::unique_ptr<AVPacket, FreeAt<av_packet_free>>;
using Frame = std::unique_ptr<AVFrame, FreeAt<av_frame_free>>;
using Codec = std::unique_ptr<AVCodecContext, FreeAt<avcodec_free_context>>;
using Demuxer = std::unique_ptr<AVFormatContext, FreeAt<avformat_close_input>>;
using Muxer = std::unique_ptr<AVFormatContext, Free<avformat_free_context>>;
using Options = std::unique_ptr<AVDictionary, FreeAt<av_dict_free>>;
using Scaler = std::unique_ptr<SwsContext, Free<sws_freeContext>>;
using Io = std::unique_ptr<AVIOContext, Free<free_io>>;

// Throws std::bad_alloc if it is null, because libav's functions that create something do not give a reason.
template <typename Owner>
Owner owned(typename Owner::pointer made) {
  if (!made) throw std::bad_alloc();
  return Owner(made);
}

// Returns the options of `text`, such as "crf=17:preset=medium".
Options parse_options(const char* text);

// Keeps libav from printing: it logs to standard error by default. Each thread keeps the last error that was
// logged on it, for libav_reason().
void silence_libav();
// Forgets the last logged error.
void begin_libav();
// libav's description of a failure: the error that it logged last, else the meaning of the code. One line.
std::string libav_reason(int code);

// A file in memory that libav writes. If it `is_seekable`, libav seeks back in it and reads it again.
class MemoryFile {
 public:
  explicit MemoryFile(bool is_seekable);
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Lets `muxer` write here.
  void attach(AVFormatContext& muxer);
  // Returns what was written since the last call, and forgets it.
  std::string take();

 private:
  static int open_again(AVFormatContext* muxer, AVIOContext** io, const char* url, int flags,
                        AVDictionary** options);

  std::string bytes_;
  int64_t position_ = 0;
  Io io_;
};

// Lets libav read a source, which must outlive this.
class SourceReader {
 public:
  explicit SourceReader(const Source& source);
  SourceReader(const SourceReader&) = delete;
  SourceReader& operator=(const SourceReader&) = delete;

  AVIOContext* io() const { return io_.get(); }

 private:
  const Source& source_;
  int64_t position_ = 0;
  Io io_;
};

}  // namespace tessera::media
