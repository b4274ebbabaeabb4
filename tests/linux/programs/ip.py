"""What a node does in tests of IP: each command prints one line of JSON."""

import hashlib
import json
import os
import random
import select
import socket
import struct
import sys
import time

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


def sizes(peer, first, last, step):
    """Echo requests with every size of data; each answer must be the same data."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    ident = os.getpid() & 0xFFFF
    todo = list(range(int(first), int(last) + 1, int(step)))
    todo.reverse()
    waiting, answered, wrong, again = {}, 0, 0, 0
    while todo or waiting:
        while todo and len(waiting) < 8:
            size = todo.pop()
            data = os.urandom(size)
            head = struct.pack("!BBHHH", ICMP_ECHO, 0, 0, ident, size)
            head = struct.pack("!BBHHH", ICMP_ECHO, 0, checksum(head + data), ident, size)
            sock.sendto(head + data, (peer, 0))
            waiting[size] = (data, time.monotonic())
        ready, _, _ = select.select([sock], [], [], 1)
        if ready:
            packet = sock.recv(65536)
            packet = packet[(packet[0] & 15) * 4:]
            kind, _, _, whose, size = struct.unpack("!BBHHH", packet[:8])
            if kind == ICMP_REPLY and whose == ident and size in waiting:
                data, _ = waiting.pop(size)
                answered += 1
                wrong += packet[8:] != data
        for size, (_, since) in list(waiting.items()):
            if time.monotonic() - since > 5:
                del waiting[size]
                again += 1
                if again > 50:
                    todo.clear()
                    waiting.clear()
                    break
                todo.append(size)
    return {"answered": answered, "wrong": wrong, "again": again}


def group(nodes, seconds):
    """Tells all nodes of its own in multicasts until it has heard of all of them."""
    nodes, end = int(nodes), time.monotonic() + float(seconds)
    index = socket.if_nametoindex(INTERFACE)
    own = socket.gethostname()
    socks, heard, twice = [], {4: set(), 6: set()}, 0
    for family in (socket.AF_INET, socket.AF_INET6):
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET:
            sock.bind((GROUP4, GROUP_PORT))
            join = socket.inet_aton(GROUP4) + struct.pack("@II", 0, index)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("@III", 0, 0, index))
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(("::", GROUP_PORT))
            join = socket.inet_pton(family, GROUP6) + struct.pack("@I", index)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, join)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        socks.append(sock)
    seen, number, told, complete = set(), 0, 0.0, None
    while time.monotonic() < end:
        now = time.monotonic()
        if all(len(names) >= nodes for names in heard.values()):
            complete = complete or now
            # The others may not have heard of it yet.
            if now - complete > 4:
                break
        if now - told > 0.25:
            told, number = now, number + 1
            text = f"{own} {number}".encode()
            socks[0].sendto(text, (GROUP4, GROUP_PORT))
            socks[1].sendto(text, (GROUP6, GROUP_PORT, 0, index))
        ready, _, _ = select.select(socks, [], [], 0.25)
        for sock in ready:
            version = 4 if sock is socks[0] else 6
            text, _ = sock.recvfrom(2048)
            twice += (version, text) in seen
            seen.add((version, text))
            heard[version].add(text.split()[0])
    return {"heard4": len(heard[4]), "heard6": len(heard[6]), "twice": twice}


def all_peers(nodes):
    """One datagram of 1400 bytes to every node, which sends it back (`echo`)."""
    missing = []
    for node in range(int(nodes)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        data, end, back = os.urandom(1400), time.monotonic() + 60, None
        # Nobody may listen there yet, and on a busy host an answer takes its time.
        while back != data and time.monotonic() < end:
            sock.sendto(data, (f"n{node}", GROUP_PORT + 1))
            if select.select([sock], [], [], 2)[0]:
                back = sock.recv(2048)
        if back != data:
            missing.append(node)
    return {"missing": missing}


def echo():
    """Sends datagrams back, for as long as it runs."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("", GROUP_PORT + 1))
    while True:
        data, sender = sock.recvfrom(2048)
        sock.sendto(data, sender)


def take(connection, amount):
    digest, left = hashlib.sha256(), amount
    while left:
        data = connection.recv(min(left, 1 << 18))
        if not data:
            break
        digest.update(data)
        left -= len(data)
    return digest.hexdigest(), amount - left


def give(connection, amount, seed):
    source, digest = random.Random(seed), hashlib.sha256()
    block = source.randbytes(1 << 18)
    left = amount
    while left:
        # Not the same over and over, and made faster than at random.
        turn = source.randrange(len(block))
        data = (block[turn:] + block[:turn])[:left]
        connection.sendall(data)
        digest.update(data)
        left -= len(data)
    return digest.hexdigest()


def serve(amount):
    """Takes so many bytes from a client while it gives it as many; both say what they saw."""
    return stream(socket.create_server(("::", STREAM_PORT), family=socket.AF_INET6, dualstack_ipv6=True)
                  .accept()[0], int(amount), "serve")


def connect(peer, amount):
    for _ in range(100):
        try:
            return stream(socket.create_connection((peer, STREAM_PORT), 20), int(amount), "connect")
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
        # Not its own hardware address, its own with another's IP address, and no node's.
        send("spoofed mac", ether(theirs, b"\x02\0\x05\x05\x05\x01", ETHER_IP) + packet)
        send("spoofed ip", ether(theirs, mac, ETHER_IP) + udp(target, target, b"x" * 100))
        send("foreign mac", ether(theirs, b"\x52\x54\0\x12\x34\x56", ETHER_IP) + packet)
        send("absent", ether(b"\x02\0\x1f\x1e\x1d\x0c", mac, ETHER_IP) + packet)
        send("nobody", ether(b"\x06\0\0\0\0\x06", mac, ETHER_IP) + packet)
        question = struct.pack("!HHBBH", 1, ETHER_IP, 6, 4, 1) + mac + mine + b"\0" * 6
        send("arp", ether(broadcast, mac, ETHER_ARP) + question + random.randbytes(4))
        send("arp short", ether(broadcast, mac, ETHER_ARP) + question[: n % 20])
        # As short as the kernel lets it be, and with lengths that lie.
        send("truncated", ether(theirs, mac, ETHER_IP) + packet[: n % 28])
        send("lying", ether(theirs, mac, ETHER_IP) + packet[:2] + b"\xff\xff" + packet[4:])
        send("oversized", ether(theirs, mac, ETHER_IP) + packet + b"x" * (2000 + n))
        send("garbage", ether(theirs, mac, 0x1234 + n) + random.randbytes(n % 1400))
        send("group", ether(b"\x01\0\x5e" + random.randbytes(3), other, ETHER_IP) + packet)
    return {"sent": sent, "refused": refused}


def main():
    commands = {
        "sizes": sizes, "group": group, "all": all_peers, "echo": echo,
        "serve": serve, "connect": connect, "bad": bad,
    }
    print(json.dumps(commands[sys.argv[1]](*sys.argv[2:])))


main()
