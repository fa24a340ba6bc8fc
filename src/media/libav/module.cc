#include "codecs_version.h"
#include "media/codecs.h"
#include "media/libav/decoder.h"
#include "media/libav/encoder.h"
#include "media/libav/still_encoder.h"
#include "media/libjpeg/jpeg_decoder.h"

const tessera::media::Codecs tessera_codecs = {.version = TESSERA_CODECS_VERSION,
                                               .make_encoder = tessera::media::make_encoder,
                                               .make_decoder = tessera::media::make_decoder,
                                               .make_jpeg_decoder = tessera::media::make_jpeg_decoder,
                                               .read_comment = tessera::media::read_comment,
                                               .encode_image = tessera::media::encode_image};
