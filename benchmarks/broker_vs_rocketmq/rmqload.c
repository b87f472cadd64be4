// rmqload: a load generator for any broker that speaks the RocketMQ remoting protocol.
// One thread, epoll, pipelined requests, so that the broker and not the client is measured.
//
//   cc -O2 -o rmqload rmqload.c
//   rmqload send --port 10911 --topic bench --conns 8 --window 32 --size 1024 --seconds 10
//   rmqload pull --port 10911 --topic bench --conns 4 --seconds 10      (one queue a connection)
//   rmqload send --port 10911 --topic bench --seconds 60 --count 400000 (ends early, once so many are through)
//   rmqload send --port 10911 --topic bench --rate 50000                (no faster than that)
//
// send: SEND_MESSAGE_V2 (310) with JSON headers; prints acks/s, MB/s and latency percentiles.
// pull: PULL_MESSAGE (11) from offset 0 of queue i on connection i; prints messages/s and MB/s, and
//       checks the magic code, the body CRC and the order of the queue offsets of every message.
// The first fifth of the time is warm-up and is not counted, except in the total at the end of the line: that is every
// message of the run, by which somebody divides the broker's processor time. Exit 1 on any error answer.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 65536

typedef struct {
  int fd, inflight, queue;
  char *out; size_t olen, ooff, ocap;
  char *in; size_t ilen, icap;
  double *sent_at;
  uint64_t next_offset;
  int done;
} Conn;

static const char *host = "127.0.0.1", *topic = "bench", *group = "bench_group";
static int port = 10911, conns = 8, window = 32, size = 1024, queues = 4, pull_batch = 32;
static double seconds = 10, rate = 0, began;
static long put, turn;
static int pulling, shown_errors;
static uint32_t opaque;
static char *body;
static long acked, bytes, errors, count = -1;
static double *lat; static long nlat; static const long max_lat = 1 << 24;
static uint32_t crc_table[8][256];

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static uint32_t be32(const char *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static uint64_t be64(const char *p) { return ((uint64_t)be32(p) << 32) | be32(p + 4); }

static void crc_init(void) {
  for (uint32_t i = 0; i < 256; i++) { uint32_t c = i; for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1; crc_table[0][i] = c; }
  for (int t = 1; t < 8; t++) for (int i = 0; i < 256; i++) crc_table[t][i] = crc_table[0][crc_table[t - 1][i] & 255] ^ (crc_table[t - 1][i] >> 8);
}
static uint32_t crc32(const char *p, size_t n) {   // eight bytes a step, so that the check costs the generator little
  uint32_t c = ~0u;
  for (; n >= 8; n -= 8, p += 8) {
    uint32_t a, b; memcpy(&a, p, 4); memcpy(&b, p + 4, 4); a ^= c;
    c = crc_table[7][a & 255] ^ crc_table[6][a >> 8 & 255] ^ crc_table[5][a >> 16 & 255] ^ crc_table[4][a >> 24]
      ^ crc_table[3][b & 255] ^ crc_table[2][b >> 8 & 255] ^ crc_table[1][b >> 16 & 255] ^ crc_table[0][b >> 24];
  }
  while (n--) c = crc_table[0][(c ^ (unsigned char)*p++) & 255] ^ (c >> 8);
  return ~c;
}

static void put_frame(Conn *c, const char *header, int hlen, const char *b, int blen) {
  size_t need = 8 + hlen + blen;
  if (c->olen + need > c->ocap) { c->ocap = (c->olen + need) * 2; c->out = realloc(c->out, c->ocap); }
  char *p = c->out + c->olen;
  uint32_t total = htonl(4 + hlen + blen), mark = htonl(hlen);
  memcpy(p, &total, 4); memcpy(p + 4, &mark, 4); memcpy(p + 8, header, hlen);
  if (blen) memcpy(p + 8 + hlen, b, blen);
  c->olen += need; c->inflight++;
}

static int is_due(double t) { return rate <= 0 || put < (t - began) * rate; }

static void put_request(Conn *c) {
  put++;
  char h[1536]; uint32_t op = opaque++; int n;
  if (pulling) {
    n = snprintf(h, sizeof h,
      "{\"code\":11,\"extFields\":{\"consumerGroup\":\"%s\",\"topic\":\"%s\",\"queueId\":\"%d\",\"queueOffset\":\"%lu\","
      "\"maxMsgNums\":\"%d\",\"sysFlag\":\"4\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"0\",\"subscription\":\"*\","
      "\"subVersion\":\"0\",\"expressionType\":\"TAG\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
      "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
      group, topic, c->queue, (unsigned long)c->next_offset, pull_batch, op);
    put_frame(c, h, n, NULL, 0);
  } else {
    struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
    n = snprintf(h, sizeof h,
      "{\"code\":310,\"extFields\":{\"a\":\"%s\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%u\",\"f\":\"0\",\"g\":\"%ld\","
      "\"h\":\"0\",\"i\":\"UNIQ_KEY\\u00017F000001%08X18B4AAC2%08X\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA\",\"j\":\"0\","
      "\"k\":\"false\",\"m\":\"false\",\"n\":\"\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
      "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":453}",
      group, topic, op % queues, (long)(t.tv_sec * 1000 + t.tv_nsec / 1000000), (unsigned)getpid(), op, op);
    put_frame(c, h, n, body, size);
  }
  c->sent_at[op % SLOTS] = now();
}

static void flush_out(Conn *c) {
  while (c->ooff < c->olen) {
    ssize_t n = send(c->fd, c->out + c->ooff, c->olen - c->ooff, MSG_NOSIGNAL);
    if (n < 0) { if (errno == EAGAIN) return; perror("send"); exit(1); }
    c->ooff += n;
  }
  c->ooff = c->olen = 0;
}

static void fail(const char *what, const char *h, int n) {
  errors++;
  if (shown_errors++ < 3) fprintf(stderr, "rmqload: %s: %.*s\n", what, n, h);
}

static void on_messages(Conn *c, const char *p, size_t n) {
  size_t o = 0;
  while (n - o >= 88) {
    uint32_t total = be32(p + o), magic = be32(p + o + 4);
    if (magic != 0xDAA320A7u && magic != 0xDAA320A3u) { fail("bad magic", "", 0); return; }
    uint32_t crc = be32(p + o + 8), sys = be32(p + o + 36);
    uint64_t off = be64(p + o + 20);
    size_t at = 48 + (sys & 16 ? 20 : 8) + 8 + (sys & 32 ? 20 : 8) + 4 + 8;
    uint32_t blen = be32(p + o + at);
    if (o + total > n || at + 4 + blen > total) { fail("bad length", "", 0); return; }
    if ((crc32(p + o + at + 4, blen) & 0x7fffffffu) != (crc & 0x7fffffffu)) fail("bad crc", "", 0);
    if (off < c->next_offset) fail("offset went back", "", 0);
    c->next_offset = off + 1;
    acked++; bytes += blen; o += total;
  }
}

static void on_response(Conn *c, char *h, int hl, const char *b, size_t bl, double t) {
  char keep = h[hl]; h[hl] = 0;
  char *p = strstr(h, "\"code\":"); int code = p ? atoi(p + 7) : -1;
  p = strstr(h, "\"opaque\":"); uint32_t op = p ? strtoul(p + 9, 0, 10) : 0;
  if (nlat < max_lat) lat[nlat++] = t - c->sent_at[op % SLOTS];
  c->inflight--;
  if (!pulling) {
    if (code == 0) { acked++; bytes += size; } else fail("send refused", h, hl);
  } else if (code == 0) {
    h[hl] = keep; on_messages(c, b, bl); return;
  } else if (code == 19 || code == 20 || code == 21) {
    p = strstr(h, "\"nextBeginOffset\":\""); uint64_t next = p ? strtoull(p + 19, 0, 10) : c->next_offset;
    if (next > c->next_offset) c->next_offset = next; else c->next_offset = 0;   // at the end: start over
  } else fail("pull refused", h, hl);
  h[hl] = keep;
}

static int by_value(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return x < y ? -1 : x > y; }

int main(int argc, char **argv) {
  if (argc < 2) { fprintf(stderr, "usage: rmqload send|pull [--host H] [--port P] [--topic T] [--conns N] [--window N] [--size B] [--queues N] [--batch N] [--seconds S] [--count N] [--rate N]\n"); return 2; }
  pulling = !strcmp(argv[1], "pull");
  if (pulling) { window = 1; conns = 4; }
  for (int i = 2; i + 1 < argc; i += 2) {
    const char *k = argv[i], *v = argv[i + 1];
    if (!strcmp(k, "--host")) host = v; else if (!strcmp(k, "--port")) port = atoi(v); else if (!strcmp(k, "--topic")) topic = v;
    else if (!strcmp(k, "--group")) group = v; else if (!strcmp(k, "--conns")) conns = atoi(v); else if (!strcmp(k, "--window")) window = atoi(v);
    else if (!strcmp(k, "--size")) size = atoi(v); else if (!strcmp(k, "--queues")) queues = atoi(v); else if (!strcmp(k, "--batch")) pull_batch = atoi(v);
    else if (!strcmp(k, "--seconds")) seconds = atof(v); else if (!strcmp(k, "--rate")) rate = atof(v);
    else if (!strcmp(k, "--count")) count = atol(v); else { fprintf(stderr, "rmqload: unknown option %s\n", k); return 2; }
  }
  if (pulling) window = 1;
  crc_init();
  body = malloc(size + 1); for (int i = 0; i < size; i++) body[i] = 'a' + i % 26;
  lat = malloc(max_lat * sizeof *lat);
  began = now();
  int ep = epoll_create1(0); Conn *all = calloc(conns, sizeof *all);
  for (int i = 0; i < conns; i++) {
    Conn *c = all + i; c->queue = i % queues;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)}; inet_pton(AF_INET, host, &a.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&a, sizeof a)) { perror("connect"); return 1; }
    int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->icap = 1 << 20; c->in = malloc(c->icap + 1); c->sent_at = malloc(SLOTS * sizeof(double));
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c}; epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    for (int k = 0; k < window && is_due(now()); k++) put_request(c);
    flush_out(c);
  }
  double start = now(), counted_from = start + seconds / 5; int counting = 0; long acked0 = 0, bytes0 = 0;
  for (double t; (t = now()) < start + seconds && (count < 0 || acked < count);) {
    if (!counting && t > counted_from) { counting = 1; counted_from = t; acked0 = acked; bytes0 = bytes; nlat = 0; }
    struct epoll_event ev[64]; int n = epoll_wait(ep, ev, 64, rate > 0 ? 1 : 100);
    for (int i = 0; i < n; i++) {
      Conn *c = ev[i].data.ptr;
      for (;;) {
        if (c->ilen == c->icap) { c->icap *= 2; c->in = realloc(c->in, c->icap + 1); }
        ssize_t r = recv(c->fd, c->in + c->ilen, c->icap - c->ilen, 0);
        if (r == 0) { fprintf(stderr, "rmqload: the broker closed a connection\n"); return 1; }
        if (r < 0) break;
        c->ilen += r;
        size_t o = 0; double tn = now();
        while (c->ilen - o >= 8) {
          uint32_t l = be32(c->in + o); if (c->ilen - o < 4 + (size_t)l) break;
          uint32_t hl = be32(c->in + o + 4) & 0xffffff;
          on_response(c, c->in + o + 8, hl, c->in + o + 8 + hl, l - 4 - hl, tn);
          o += 4 + l;
        }
        if (o) { memmove(c->in, c->in + o, c->ilen - o); c->ilen -= o; }
        while (rate <= 0 && c->inflight < window) put_request(c);
        flush_out(c);
      }
      flush_out(c);
    }
    for (int i = 0; rate > 0 && i < conns; i++) {   // what is due now, spread over the connections
      Conn *c = all + (turn++ % conns); double tn = now();
      for (int k = 0; k < window / 4 + 1 && c->inflight < window && is_due(tn); k++) put_request(c);
      flush_out(c);
    }
  }
  if (!nlat) { fprintf(stderr, "rmqload: no answer in the time that is counted\n"); return 1; }
  if (!counting) counted_from = start;   // --count was reached within the warm-up
  double took = now() - counted_from; qsort(lat, nlat, sizeof *lat, by_value);
  printf("%s %.0f msg/s  %.1f MB/s  errors %ld  request p50 %.3f ms  p99 %.3f ms  p99.9 %.3f ms  total %ld\n", pulling ? "pull" : "send",
         (acked - acked0) / took, (bytes - bytes0) / took / 1e6, errors, lat[nlat / 2] * 1e3, lat[(long)(nlat * .99)] * 1e3, lat[(long)(nlat * .999)] * 1e3, acked);
  return errors ? 1 : 0;
}
