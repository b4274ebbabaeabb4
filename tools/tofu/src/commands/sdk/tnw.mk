# Compiles the examples for TNW. Your own program.c beside them is compiled the same way:
#   make program && tofu run --local --generation tnw -n 4 ./program
SDK := $(dir $(lastword $(MAKEFILE_LIST)))../..
CFLAGS ?= -O2 -g -Wall
CPPFLAGS += -I$(SDK)/include
LDFLAGS += -L$(SDK)/lib
LDLIBS += -ltnw
# Of an SDK for other processors than this host's.
-include $(SDK)/arch.mk

all: shift stream

shift: shift.c check.h

stream: stream.c check.h

clean:
	rm -f shift stream

.PHONY: all clean
