# How examples are compiled for nodes with Fugaku's processor.
ifeq ($(origin CC),default)
CC := $(SDK)/bin/fccpx
endif
EXAMPLES += sve
