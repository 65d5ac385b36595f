/* A host that tokenizes with the tokenizer library of a worker: ten functions, found by name.
 *
 * usage: tokenizer_library LIBRARY MODEL TEXT
 * Prints the ids of TEXT on one line, then "vocab N bos N eos N specials N template N". Exits with 1 and a line on stderr when a
 * function does not do what it should.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static const size_t NONE = (size_t)-1;

static void *library;

/* The address of a function, as the type that `target` points at. */
static void find(void *target, const char *name) {
    char full[64];
    snprintf(full, sizeof full, "superfluid_tokenizer_%s", name);
    void *symbol = dlsym(library, full);
    if (symbol == NULL) {
        fprintf(stderr, "no %s\n", full);
        exit(1);
    }
    memcpy(target, &symbol, sizeof symbol);
}

static uint32_t number(const uint8_t *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    uint32_t (*abi_version)(void);
    void *(*open)(const char *, char *, size_t);
    void (*close)(void *);
    size_t (*encode)(const void *, const uint8_t *, size_t, uint32_t *, size_t);
    size_t (*token_bytes)(const void *, uint32_t, uint8_t *, size_t);
    uint32_t (*vocab_size)(const void *);
    size_t (*special_tokens)(const void *, uint8_t *, size_t);
    int64_t (*bos)(const void *);
    uint32_t (*eos)(const void *);
    size_t (*chat_template)(const void *, const char *, uint8_t *, size_t);
    find(&abi_version, "abi_version");
    find(&open, "open");
    find(&close, "close");
    find(&encode, "encode");
    find(&token_bytes, "token_bytes");
    find(&vocab_size, "vocab_size");
    find(&special_tokens, "special_tokens");
    find(&bos, "bos");
    find(&eos, "eos");
    find(&chat_template, "chat_template");
    CHECK(abi_version() == 1);

    /* A failure has a message, cut to the room there is. */
    char message[200] = "unchanged";
    CHECK(open("/nowhere/model.gguf", message, sizeof message) == NULL);
    CHECK(strlen(message) > 5 && strcmp(message, "unchanged") != 0);
    char cut[6] = {1, 1, 1, 1, 1, 77};
    CHECK(open("/nowhere/model.gguf", cut, 5) == NULL);
    CHECK(strlen(cut) == 4 && cut[5] == 77 && strncmp(cut, message, 4) == 0);
    CHECK(open("/nowhere/model.gguf", NULL, 0) == NULL && open(NULL, message, sizeof message) == NULL);

    void *handle = open(argv[2], message, sizeof message);
    if (handle == NULL) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    const uint8_t *text = (const uint8_t *)argv[3];
    size_t text_bytes = strlen(argv[3]);
    size_t count = encode(handle, text, text_bytes, NULL, 0);
    CHECK(count != NONE && count > 0);
    uint32_t *ids = malloc((count + 1) * sizeof *ids);
    CHECK(ids != NULL);
    ids[count] = 4711;
    ids[count - 1] = 4711;
    /* Too little room: the size needed, and no more than the room is written. */
    CHECK(encode(handle, text, text_bytes, ids, count - 1) == count && ids[count - 1] == 4711);
    CHECK(encode(handle, text, text_bytes, ids, count) == count && ids[count] == 4711);
    for (size_t at = 0; at < count; at++) {
        printf("%s%" PRIu32, at == 0 ? "" : " ", ids[at]);
        CHECK(ids[at] < vocab_size(handle));
        uint8_t bytes[256];
        size_t needed = token_bytes(handle, ids[at], bytes, sizeof bytes);
        CHECK(needed != NONE && needed <= sizeof bytes);
    }
    printf("\n");
    CHECK(encode(handle, (const uint8_t *)"\xC3\x28", 2, ids, count) == NONE);
    CHECK(encode(handle, NULL, 0, NULL, 0) == 0);
    CHECK(token_bytes(handle, vocab_size(handle), NULL, 0) == NONE);

    size_t bytes = special_tokens(handle, NULL, 0);
    CHECK(bytes != NONE);
    uint8_t *records = malloc(bytes + 1);
    CHECK(records != NULL && special_tokens(handle, records, bytes) == bytes);
    size_t specials = 0;
    for (size_t at = 0; at < bytes; specials++) {
        CHECK(bytes - at >= 8);
        uint32_t id = number(records + at), length = number(records + at + 4);
        CHECK(id < vocab_size(handle) && bytes - at - 8 >= length);
        /* Its text in a text is that token. */
        uint32_t found = 0;
        if (length > 0 && encode(handle, records + at + 8, length, &found, 1) == 1) {
            CHECK(found == id);
        }
        at += 8 + length;
    }
    size_t template_bytes = chat_template(handle, NULL, NULL, 0);
    CHECK(chat_template(handle, "default", NULL, 0) == template_bytes);
    CHECK(chat_template(handle, "another", NULL, 0) == NONE);
    printf("vocab %" PRIu32 " bos %" PRId64 " eos %" PRIu32 " specials %zu template %" PRId64 "\n", vocab_size(handle),
           bos(handle), eos(handle), specials, template_bytes == NONE ? (int64_t)-1 : (int64_t)template_bytes);
    CHECK(vocab_size(NULL) == 0 && encode(NULL, text, text_bytes, NULL, 0) == NONE && bos(NULL) == -1);
    free(records);
    free(ids);
    close(handle);
    close(NULL);
    return 0;
}
