/* What the VFIO selftests need of libuuid: see support.c. */
#pragma once
typedef unsigned char uuid_t[16];
int uuid_parse(const char *text, uuid_t uuid);
