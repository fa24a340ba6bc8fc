// A request to OpenAI's videos API, and the object that represents a video.
#pragma once

#include "serve/api_request.h"

namespace tessera::serve {

// The job has no owner yet. Its echo holds what a video object repeats from the request. Throws ApiError.
JobRequest read_video_creation(const ApiBody& body, const ModelTraits& model);

// Throws ApiError for a limit that is not a number from 0 to 100, and for an unknown order. The list may have
// one more than `limit`, which shows that there are more.
struct VideoList {
  JobFilter filter;
  int64_t limit = 20;
};
VideoList read_video_list(const HttpRequest& request);

// Has all keys of OpenAI's object, and `warnings` if there are any.
OrderedJson video_object(const JobView& job, const ModelTraits& model);
OrderedJson video_list(const VideoList& list, std::vector<JobView> jobs, const ModelTraits& model);

}  // namespace tessera::serve
