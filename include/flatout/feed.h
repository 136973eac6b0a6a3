/* flatout/feed.h: Flatout's input pipeline for any language: libflatout_feed.so.
 *
 *   flatout_feed* feed = flatout_feed_open("train/", "{\"batch\": 64, \"size\": 224}");
 *   if (feed == NULL) { fputs(flatout_feed_error(), stderr); exit(1); }
 *   struct flatout_feed_batch* batch;
 *   while (flatout_feed_next(feed, &batch) == FLATOUT_FEED_BATCH) {
 *     ... batch->data, batch->labels ...
 *     flatout_feed_release(batch);
 *   }
 *   flatout_feed_close(feed);
 *
 * Options are one JSON object; each has a default:
 *   batch 64, size 224 or [height, width], threads 0 (one a core), prefetch 2 (batches), seed 0,
 *   shuffle true, drop_last false, rank 0, ranks 1, on_bad "skip" ("strict", "lenient"),
 *   mode "exact" ("scaled"), dtype "f32" ("u8", "f16", "bf16"), layout "nchw" ("nhwc"),
 *   mean [r, g, b], std [r, g, b] (one number: of all three),
 *   augment "random_crop" (scale [0.08, 1], ratio [3/4, 4/3], flip 0.5), "center_crop" (resize
 *   256), "stretch"; interpolation "bilinear" ("bicubic"),
 *   brightness [1, 1], contrast [1, 1], saturation [1, 1], hue [0, 0] (ranges that factors of
 *   colour jitter are drawn from), randaugment [0, 9] (operations, magnitude of 0 to 30),
 *   mixup 0, cutmix 0 (the alpha of each; 0: none),
 *   shuffle_buffer 0 (samples that are shuffled among themselves; 0: all of the epoch) and
 *   shuffle_run 256 (neighbours that stay together in the stream that the buffer is filled from),
 *   orient false (true: turn pictures as their EXIF data say),
 *   allow_empty false (true: class folders without pictures have their number),
 *   index "memory" (the seek index: "off", or a file that keeps it), index_mb 64 (that it may take
 *   in memory).
 *
 * path: a folder of pictures, with a folder for each class; a list of files and labels (text, CSV
 * or JSON); tar or WebDataset shards, TFRecord files, a file of `flatout feed pack`; a folder of
 * such, or a name with braces or wildcards: train-{000..146}.tar, train-*.tar.
 *
 * A feed may be used by one thread at a time; batches by any, and after the feed is closed. In a
 * process that was forked from the one that opened it it can only be closed. */
#ifndef FLATOUT_FEED_H_
#define FLATOUT_FEED_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef FLATOUT_FEED_API
#define FLATOUT_FEED_API
#endif

typedef struct flatout_feed flatout_feed;

enum {
  FLATOUT_FEED_ERROR = -1,
  FLATOUT_FEED_END = 0, /* of the epoch; the next call begins the next one */
  FLATOUT_FEED_BATCH = 1,
};

/* Read-only but for the bytes of data. New fields are added at the end. */
struct flatout_feed_batch {
  void* data;       /* dense, aligned to 64 bytes; shape and type below */
  int64_t* labels;  /* [count] */
  int64_t* indices; /* [count], numbers of the samples in the data set */
  int32_t* views;   /* [count, 5]: x, y, width, height of the part shown, and 1 where mirrored */
  int64_t shape[4]; /* [count, 3, height, width] or [count, height, width, 3] */
  int32_t count;
  int32_t type; /* 0 u8, 1 f32, 2 f16, 3 bf16 */
  uint32_t epoch;
  float weight;      /* of labels where samples were mixed, else 1; the rest is that of partners */
  int64_t* partners; /* [count], labels of the samples that were mixed in */
};

/* Where a feed goes on: samples of the epoch that all ranks together have taken. */
struct flatout_feed_place {
  uint32_t epoch;
  uint64_t position;
};

/* What went wrong last on this thread; "" if nothing did. Valid until its next call. */
FLATOUT_FEED_API const char* flatout_feed_error(void);

/* NULL on failure. */
FLATOUT_FEED_API flatout_feed* flatout_feed_open(const char* path, const char* options_json);
FLATOUT_FEED_API void flatout_feed_close(flatout_feed* feed);

/* A sample on its way: cut, resized and distorted, not normalised yet. */
struct flatout_feed_sample {
  uint8_t* pixels; /* [height, width, 4]: red, green, blue, and a byte that means nothing */
  int32_t height;
  int32_t width;
  int64_t label; /* may be changed */
  int64_t index; /* number of the sample in the data set */
  uint32_t epoch;
  uint64_t random; /* of (seed, epoch, index): for what the stage draws */
  char error[256]; /* where it fails: why */
};
/* A stage of your own between the augmentation and the batch. 0, or anything else to fail the
 * batch. Called by several threads at a time. */
typedef int (*flatout_feed_stage)(void* context, struct flatout_feed_sample* sample);

/* As flatout_feed_open, with a stage; `context` has to live until the feed is closed. */
FLATOUT_FEED_API flatout_feed* flatout_feed_open_with_stage(const char* path,
                                                            const char* options_json,
                                                            flatout_feed_stage stage,
                                                            void* context);

/* 1 once flatout_feed_next would not wait, 0 after so many milliseconds. */
FLATOUT_FEED_API int flatout_feed_wait(flatout_feed* feed, int milliseconds);
/* FLATOUT_FEED_BATCH, _END or _ERROR. The batch is the caller's until it is released. */
FLATOUT_FEED_API int flatout_feed_next(flatout_feed* feed, struct flatout_feed_batch** batch);
FLATOUT_FEED_API void flatout_feed_release(struct flatout_feed_batch* batch);

/* Memory of your own for one of the batches to come, page-locked memory for instance:
 * flatout_feed_batch_bytes(), aligned to 64 bytes. It has to live until it comes back as the data
 * of a batch, or the feed is closed, and is not used again: releasing that batch leaves it alone.
 * Lend one for each batch; without any the feed takes memory itself. 0, or FLATOUT_FEED_ERROR. */
FLATOUT_FEED_API int flatout_feed_lend(flatout_feed* feed, void* memory);
FLATOUT_FEED_API size_t flatout_feed_batch_bytes(const flatout_feed* feed);

FLATOUT_FEED_API uint64_t flatout_feed_samples(const flatout_feed* feed);
/* Of a sample by its number: its file, and where in it. "" where there is none of that number.
 * Valid until this thread's next call. */
FLATOUT_FEED_API const char* flatout_feed_name(const flatout_feed* feed, uint64_t index);
FLATOUT_FEED_API uint64_t flatout_feed_batches(const flatout_feed* feed); /* of an epoch */

FLATOUT_FEED_API struct flatout_feed_place flatout_feed_get_place(const flatout_feed* feed);
/* 0, or FLATOUT_FEED_ERROR. */
FLATOUT_FEED_API int flatout_feed_set_place(flatout_feed* feed, struct flatout_feed_place place);

/* JSON, of the batches so far: {"classes": [...], "samples", "replaced", "outcomes": {...}, "bad":
 * [{"file", "outcome", "detail"}], "threads", "stages": [{"name", "cpu_ms_per_image"}], "waited_ms"
 * (that flatout_feed_next waited), "held_up_ms" (that threads waited for room), "read_ahead":
 * {"way", "threads", "samples"}}. Valid until this thread's next call. */
FLATOUT_FEED_API const char* flatout_feed_report(const flatout_feed* feed);

/* A DLManagedTensor (DLPack 0.8) of the batch's data, which keeps the batch alive until its deleter
 * is called. */
FLATOUT_FEED_API void* flatout_feed_dlpack(struct flatout_feed_batch* batch);

/* One picture in memory, its whole or the part x, y, width, height of it, resized: into `out`, u8
 * [height, width, 3] of out_height x out_width. `box` may be NULL. scaled: 1 lets JPEG be decoded
 * at reduced size. 0, or FLATOUT_FEED_ERROR. */
FLATOUT_FEED_API int flatout_feed_picture(const void* data, size_t bytes, const int32_t box[4],
                                          int scaled, int out_height, int out_width, void* out);

#ifdef __cplusplus
}
#endif

#endif /* FLATOUT_FEED_H_ */
