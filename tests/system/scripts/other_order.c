/* Preloaded into a process, it makes every directory list its entries in the opposite order. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct listing {
    DIR *of;
    struct dirent64 **entries;
    long left;
    struct listing *next;
};

static struct listing *listings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct listing *read_all(DIR *of) {
    struct dirent64 *(*real)(DIR *) = (struct dirent64 *(*)(DIR *))dlsym(RTLD_NEXT, "readdir64");
    struct listing *new = calloc(1, sizeof *new);
    struct dirent64 *entry;
    new->of = of;
    while ((entry = real(of))) {
        new->entries = realloc(new->entries, (new->left + 1) * sizeof *new->entries);
        new->entries[new->left] = malloc(entry->d_reclen);
        memcpy(new->entries[new->left++], entry, entry->d_reclen);
    }
    new->next = listings;
    return listings = new;
}

struct dirent64 *readdir64(DIR *of) {
    struct listing *found;
    struct dirent64 *entry;
    pthread_mutex_lock(&lock);
    for (found = listings; found && found->of != of; found = found->next) {}
    if (!found) found = read_all(of);
    /* What was handed out stays until the end of the process: small, and nobody else knows how long it is needed. */
    entry = found->left ? found->entries[--found->left] : NULL;
    pthread_mutex_unlock(&lock);
    return entry;
}

/* The same structure where long has 64 bits. */
struct dirent *readdir(DIR *of) { return (struct dirent *)readdir64(of); }

static void forget(DIR *of) {
    struct listing **at;
    pthread_mutex_lock(&lock);
    for (at = &listings; *at && (*at)->of != of; at = &(*at)->next) {}
    if (*at) *at = (*at)->next;
    pthread_mutex_unlock(&lock);
}

int closedir(DIR *of) {
    forget(of);
    return ((int (*)(DIR *))dlsym(RTLD_NEXT, "closedir"))(of);
}

void rewinddir(DIR *of) {
    forget(of);
    ((void (*)(DIR *))dlsym(RTLD_NEXT, "rewinddir"))(of);
}
