"""What a node does in tests of IP: each command prints one line of JSON."""

import os
import select
import socket
import struct
import sys
import time

# Other modules are imported where they are needed, because importing them takes an emulated
# processor a second.

INTERFACE = b"tofu0"
ICMP_ECHO, ICMP_REPLY = 8, 0
ETHER_IP, ETHER_ARP = 0x0800, 0x0806
GROUP4, GROUP6, GROUP_PORT = "239.84.0.1", "ff02::5400", 5400
STREAM_PORT = 5401


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def sizes(peer, first, last):
    """Echo requests with every size of data; each answer must be the same data."""
    # The kernel's own kind of socket for this, which handles checksums; the user's group must be
    # allowed to use it.
    with open("/proc/sys/net/ipv4/ping_group_range", "w") as groups:
        groups.write("0 0")
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    sock.connect((peer, 0))
    source = os.urandom(1 << 16)
    data = lambda size: source[size * 5:][:size]
    todo = list(range(int(last), int(first) - 1, -1))
    waiting, answered, wrong, again = {}, 0, 0, 0
    # Some may get lost, by intent or on a host that is short of processors.
    allowed = max(50, len(todo))
    while todo or waiting:
        while todo and len(waiting) < 16:
            size = todo.pop()
            sock.send(struct.pack("!BBHHH", ICMP_ECHO, 0, 0, 0, size) + data(size))
            waiting[size] = time.monotonic()
        if select.select([sock], [], [], 1)[0]:
            packet = sock.recv(65536)
            kind, _, _, _, size = struct.unpack("!BBHHH", packet[:8])
            if kind == ICMP_REPLY and size in waiting:
                del waiting[size]
                answered += 1
                wrong += packet[8:] != data(size)
            continue
        for size in [size for size, since in waiting.items() if time.monotonic() - since > 2]:
            del waiting[size]
            again += 1
            if again <= allowed:
                todo.append(size)
    return {"answered": answered, "wrong": wrong, "again": again}


def meet(nodes, seconds):
    """Tells all nodes of its own in multicasts until all have heard of all, and sends each a
    datagram that it has to send back."""
    nodes, end = int(nodes), time.monotonic() + float(seconds)
    index, own = socket.if_nametoindex(INTERFACE), socket.gethostname()
    group4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    group4.bind((GROUP4, GROUP_PORT))
    join = socket.inet_aton(GROUP4) + struct.pack("@II", 0, index)
    group4.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
    group4.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("@III", 0, 0, index))
    group6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    group6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    group6.bind(("::", GROUP_PORT))
    join = socket.inet_pton(socket.AF_INET6, GROUP6) + struct.pack("@I", index)
    group6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, join)
    group6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
    # One to all nodes by the link's broadcast, and one to each.
    wide = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wide.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    wide.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, INTERFACE)
    wide.bind(("", GROUP_PORT + 1))
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    data = os.urandom(1400)
    heard = {group4: set(), group6: set(), wide: set()}
    seen, content, back = set(), set(), set()
    number, told, twice, wrong, quiet = 0, 0.0, 0, 0, None
    # Names are bytes, because text would need further modules.
    addresses = {socket.gethostbyname(b"n%d" % node) for node in range(nodes)}
    while time.monotonic() < end:
        now = time.monotonic()
        done = all(len(names) >= nodes for names in heard.values()) and back == addresses
        if now - told > 1:
            # The last nodes may not have received everything from this one yet.
            if done and len(content) >= nodes:
                quiet = (quiet or 0) + 1
                if quiet > 3:
                    break
            told, number = now, number + 1
            text = f"{own} {number} {int(done)}".encode()
            group4.sendto(text, (GROUP4, GROUP_PORT))
            group6.sendto(text, (GROUP6, GROUP_PORT, 0, index))
            wide.sendto(text, ("255.255.255.255", GROUP_PORT + 1))
            for address in addresses - back:
                asking.sendto(data, (address, GROUP_PORT + 1))
        ready, _, _ = select.select([*heard, asking], [], [], 0.5)
        for sock in ready:
            text, sender = sock.recvfrom(2048)
            if sock is asking:
                back.add(sender[0])
                wrong += text != data
            elif len(text) == len(data):
                sock.sendto(text, sender)
            else:
                name, _, complete = text.split()
                twice += (sock, text) in seen
                seen.add((sock, text))
                heard[sock].add(name)
                if complete == b"1":
                    content.add(name)
    multicast4, multicast6, broadcast = (len(names) for names in heard.values())
    return {"multicast4": multicast4, "multicast6": multicast6, "broadcast": broadcast,
            "back": len(back), "wrong": wrong, "twice": twice}


def take(connection, amount):
    import hashlib

    digest, left = hashlib.sha256(), amount
    while left:
        data = connection.recv(min(left, 1 << 18))
        if not data:
            break
        digest.update(data)
        left -= len(data)
    return digest.hexdigest(), amount - left


def give(connection, amount, seed):
    import hashlib
    import random

    source, digest = random.Random(seed), hashlib.sha256()
    block = source.randbytes(1 << 18)
    left = amount
    while left:
        # The data does not repeat, and is made faster than random data.
        turn = source.randrange(len(block))
        data = (block[turn:] + block[:turn])[:left]
        connection.sendall(data)
        digest.update(data)
        left -= len(data)
    return digest.hexdigest()


def serve(amount):
    """Takes so many bytes from a client while it gives it as many; both say what they saw."""
    return stream(socket.create_server(("::", STREAM_PORT), family=socket.AF_INET6,
                                       dualstack_ipv6=True)
                  .accept()[0], int(amount), "serve")


def connect(peer, amount):
    for _ in range(100):
        try:
            connected = socket.create_connection((peer.encode(), STREAM_PORT), 20)
            return stream(connected, int(amount), "connect")
        except ConnectionRefusedError:
            time.sleep(0.2)
    return {"error": "refused"}


def stream(connection, amount, seed):
    connection.settimeout(None)
    # Both ways at once.
    start = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, give(connection, amount, seed).encode())
        os._exit(0)
    taken, count = take(connection, amount)
    os.waitpid(child, 0)
    given = os.read(reader, 100).decode()
    return {"taken": taken, "given": given, "bytes": count, "seconds": time.monotonic() - start}


def addresses(peer):
    """Of this node on the way to the other one, and of that."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((peer, 9))
    return socket.inet_aton(sock.getsockname()[0]), socket.inet_aton(sock.getpeername()[0])


def mac_of(name):
    """Of a node, by its coordinates in the name."""
    x, y, z, a, b, c = (int(part) for part in name.split("-")[1:])
    return bytes([2, 0, x, y, z, a << 3 | b << 1 | c])


def udp(source, target, data):
    """A packet of IPv4 with a datagram."""
    length = 28 + len(data)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 7, 0, 64, 17, 0, source, target)
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return head + struct.pack("!HHHH", 9, 9, 8 + len(data), 0) + data


def bad(peer, count):
    """Whatever a node can get wrong on its Ethernet."""
    import random

    count = int(count)
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHER_IP))
    raw.bind((INTERFACE.decode(), ETHER_IP))
    mac, theirs = raw.getsockname()[4], mac_of(peer)
    mine, target = addresses(peer)
    broadcast = b"\xff" * 6
    sent, refused = {}, {}

    def send(what, frame):
        try:
            raw.send(frame)
            sent[what] = sent.get(what, 0) + 1
        except OSError:
            refused[what] = refused.get(what, 0) + 1

    ether = lambda to, source, kind: to + source + struct.pack("!H", kind)
    for n in range(count):
        other = bytes([2, 0, n % 32, n // 32 % 32, 0, 0])
        packet = udp(mine, target, b"x" * 100)
        # The source is another node's hardware address, its own with another node's IP address,
        # and an address of no node.
        send("spoofed mac", ether(theirs, b"\x02\0\x05\x05\x05\x01", ETHER_IP) + packet)
        send("spoofed ip", ether(theirs, mac, ETHER_IP) + udp(target, target, b"x" * 100))
        send("foreign mac", ether(theirs, b"\x52\x54\0\x12\x34\x56", ETHER_IP) + packet)
        send("absent", ether(b"\x02\0\x1f\x1e\x1d\x0c", mac, ETHER_IP) + packet)
        send("nobody", ether(b"\x06\0\0\0\0\x06", mac, ETHER_IP) + packet)
        question = struct.pack("!HHBBH", 1, ETHER_IP, 6, 4, 1) + mac + mine + b"\0" * 6
        send("arp", ether(broadcast, mac, ETHER_ARP) + question + random.randbytes(4))
        send("arp short", ether(broadcast, mac, ETHER_ARP) + question[: n % 20])
        # As short as the kernel permits, and with wrong lengths.
        send("truncated", ether(theirs, mac, ETHER_IP) + packet[: n % 28])
        send("lying", ether(theirs, mac, ETHER_IP) + packet[:2] + b"\xff\xff" + packet[4:])
        send("oversized", ether(theirs, mac, ETHER_IP) + packet + b"x" * (2000 + n))
        send("garbage", ether(theirs, mac, 0x1234 + n) + random.randbytes(n % 1400))
        send("group", ether(b"\x01\0\x5e" + random.randbytes(3), other, ETHER_IP) + packet)
    return {"sent": sent, "refused": refused}


def main():
    commands = {
        "sizes": sizes, "meet": meet, "serve": serve, "connect": connect, "bad": bad,
    }
    answer = commands[sys.argv[1]](*sys.argv[2:])
    import json

    print(json.dumps(answer))


main()
