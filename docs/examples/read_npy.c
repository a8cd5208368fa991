/* Reads one sample of an array that dpca exported: dpca export small.zarr run.npy
   cc -O2 -o read_npy read_npy.c && ./read_npy run.npy 7 > step7.raw
   An .npy file is a short header and then the values in C order, the last axis fastest, little-endian. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    unsigned char start[12];
    char header[65536], *at;
    size_t size = 0, values = 1, length, first, n = 0, sample = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    FILE *file = argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (!file || fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6)) return 1;
    if (start[6] > 1 && fread(start + 10, 1, 2, file) != 2) return 1; /* version 2 has four bytes of length */
    length = start[8] + 256 * (size_t)start[9];
    if (length >= sizeof header || fread(header, 1, length, file) != length) return 1;
    header[length] = 0;
    if (!(at = strstr(header, "'descr': '")) || !strchr("<|", at[10])) return 1; /* such as '<f4' */
    size = strtoul(at + 12, NULL, 10);
    if (!strstr(header, "'fortran_order': False") || !(at = strstr(header, "'shape': ("))) return 1;
    first = strtoul(at + 10, &at, 10); /* the number of samples */
    while (*at == ',' && strspn(at, ", ") && (at += strspn(at, ", "), *at != ')'))
        values *= n = strtoul(at, &at, 10), fprintf(stderr, "%zu ", n);
    fprintf(stderr, "values of %zu bytes in sample %zu of %zu\n", size, sample, first);
    char *data = malloc(values * size);
    if (sample >= first || !data) return 1;
    if (fseek(file, (long)(sample * values * size), SEEK_CUR)) return 1;
    if (fread(data, size, values, file) != values) return 1;
    fwrite(data, size, values, stdout); /* or compute with (float *)data */
    free(data);
    return fclose(file);
}
