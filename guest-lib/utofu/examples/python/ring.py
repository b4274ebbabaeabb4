"""Each rank puts eight bytes into the next one's memory: uTofu without a compiler.

tofu run --local -n 4 python3 ring.py
"""
import ctypes as c
import json
import os

tofu = c.CDLL("libtofucom.so")
TCQ, LOCAL, REMOTE, RMT_PUT = 1 << 14, 1 << 15, 1 << 2, 1
STAG, COMPONENT = 10, 7


def ok(code):
    if code != 0:
        text = c.create_string_buffer(1024)
        tofu.utofu_get_last_error(text)
        raise OSError(text.value.decode())


def poll(function, result):
    while (code := function(vcq, c.c_ulong(0), c.byref(result))) == -1:
        pass
    return code


rank, size = int(os.environ["TOFU_RANK"]), int(os.environ["TOFU_SIZE"])
info = os.environ.get("TOFU_MAPINFO") or open(os.environ["TOFU_MAPINFO_FILE"]).read()
nodes = json.loads(info)["job"]["nodes"]

vcq, peer, stadd = c.c_size_t(), c.c_uint64(), c.c_uint64()
ok(tofu.utofu_create_vcq_with_cmp_id(0, COMPONENT, c.c_ulong(0), c.byref(vcq)))
memory = c.create_string_buffer(512)
start = -c.addressof(memory) % 256
inbox = c.c_void_p(c.addressof(memory) + start)
ok(tofu.utofu_reg_mem_with_stag(vcq, inbox, c.c_size_t(8), STAG, c.c_ulong(0), c.byref(stadd)))

# The next rank's VCQ and memory have IDs that can be computed.
coords = (c.c_uint8 * 6)(*nodes[(rank + 1) % size])
ok(tofu.utofu_construct_vcq_id(coords, 0, 0, COMPONENT, c.byref(peer)))
ok(tofu.utofu_query_stadd(peer, STAG, c.byref(stadd)))
done, notice = c.c_void_p(), (c.c_uint64 * 8)()
under_way = delivered = received = False
while not (delivered and received):
    if not (delivered or under_way):
        ok(tofu.utofu_put_piggyback8(vcq, peer, c.c_uint64(rank + 100), stadd, c.c_size_t(8),
                                     c.c_uint64(0), c.c_ulong(TCQ | LOCAL | REMOTE), None))
        ok(poll(tofu.utofu_poll_tcq, done))  # it was sent
        under_way = True
    code = poll(tofu.utofu_poll_mrq, notice)
    if notice[0] & 0xff == RMT_PUT:
        received = True
    else:  # an error as long as the next rank has not registered its memory: once more
        under_way, delivered = False, code == 0
print(f"rank {rank} has {int.from_bytes(memory[start:start + 8], 'little')}")
