-- Dissector of captures that `tofu capture` makes: our record header, the TLP behind it, and IP
-- over Tofu in system packets. For Wireshark and tshark, 3.6 or later:
--
--     tshark -X lua_script:tofu.lua -r file.pcapng
--
-- or copy it to ~/.local/lib/wireshark/plugins. The layouts are in
-- vmm-device/machine/src/capture/record.rs.

local bits = bit32 or bit
local band, bxor, rshift = bits.band, bits.bxor, bits.rshift

local RECORD_HEADER = 56
local LINK_PART = 24
local FRAME_HEADER = 16
local FRAGMENT = 1952
local IP_HEADER = 20
local METADATA = 8

local tofu = Proto("tofu", "Tofu interconnect")
local ipot = Proto("ipot", "IP over Tofu")

local PORTS = { [0] = "A", "C", "B-", "B+", "X-", "X+", "Y-", "Y+", "Z-", "Z+" }
local DIRECTIONS = {
    [0] = "out", "in", "lost: link down", "lost: no such node", "lost: no such path", "lost",
}
local CLASSES = { [0] = "request", "response", "system" }
local KINDS = {
    "system packet", "raw packet", "Put", "Get", "atomic", "Put answer", "Get answer",
    "atomic answer", "barrier signal", "DLLP", "TNW data", "TNW HELLO", "TNW ACK", "TNW NACK",
    "TNW RESTART",
}
local SYSTEM, RAW, PUT, GET, ATOMIC, PUT_ANSWER, GET_ANSWER, ATOMIC_ANSWER, SIGNAL, DLLP =
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local TNW_DATA = 11
local CHECKS = { [0] = "good", "marked as bad", "damaged" }
local DLLPS = { "ACK", "NACK", "UpdateFC", "Poll" }
local ACK, NACK, UPDATE_FC = 1, 2, 3
local WAYS = { [0] = "shortest", "distances", "one hop" }
local OPS = { [0] = "compare and swap", "swap", "add", "xor", "and", "or" }
local SIGNAL_OPS = {
    "barrier", "and", "or", "xor", "max", "maxloc", "sum", "floating-point sum",
}
local IP_KINDS = {
    [0] = "unicast", "broadcast", "offloaded", "acknowledgement", "request", "done",
    "split request",
}
local BROADCAST, OFFLOADED, ACKNOWLEDGEMENT, REQUEST, DONE, SPLIT = 1, 2, 3, 4, 5, 6
-- What each generation has. A record of a device before there were several has number 0.
local GENERATIONS = {
    [1] = { name = "Tofu (K computer)", tnis = 4, cqs = 3, barrier_tnis = 1, gates = 64,
        atomics = false, queue = 0, stag = 22 },
    [2] = { name = "Tofu (PRIMEHPC FX10)", tnis = 4, cqs = 3, barrier_tnis = 1, gates = 64,
        atomics = false, queue = 0, stag = 22 },
    [3] = { name = "Tofu2 (PRIMEHPC FX100)", tnis = 4, cqs = 12, barrier_tnis = 1, gates = 64,
        atomics = true, queue = 6, stag = 18 },
    [4] = { name = "TofuD (Fugaku)", tnis = 6, cqs = 12, barrier_tnis = 6, gates = 48,
        atomics = true, queue = 6, stag = 18 },
}
GENERATIONS[0] = GENERATIONS[4]
local NAMES = {}
for number, generation in pairs(GENERATIONS) do
    NAMES[number] = generation.name
end
-- The other network, whose packets have nothing in common with Tofu's.
local TNW = 16
NAMES[TNW] = "TNW (QPACE and AuroraScience)"
local SEGMENTS = { [0] = "one", "TCP over IPv4", [4] = "TCP over IPv6" }

local f = {
    version = ProtoField.uint8("tofu.version", "Record header version"),
    header = ProtoField.uint8("tofu.header_length", "Record header length"),
    place = ProtoField.string("tofu.place", "Seen at"),
    direction = ProtoField.uint8("tofu.direction", "Direction", base.DEC, DIRECTIONS),
    vc = ProtoField.uint8("tofu.vc", "Virtual channel"),
    class = ProtoField.uint8("tofu.class", "Class", base.DEC, CLASSES),
    kind = ProtoField.uint8("tofu.kind", "Kind", base.DEC, KINDS),
    way = ProtoField.uint8("tofu.way", "Way", base.DEC, WAYS, 0x7f),
    nullified = ProtoField.bool("tofu.nullified", "Marked as bad", 8, nil, 0x80),
    node = ProtoField.string("tofu.node", "Node"),
    src = ProtoField.string("tofu.src", "Source"),
    dst = ProtoField.string("tofu.dst", "Target"),
    src_tni = ProtoField.uint8("tofu.src_tni", "Source TNI"),
    dst_tni = ProtoField.uint8("tofu.dst_tni", "Target TNI"),
    path = ProtoField.string("tofu.path", "Path (A, B, C)"),
    hop = ProtoField.uint8("tofu.hop_port", "Hop through port", base.DEC, PORTS),
    distances = ProtoField.string("tofu.distances", "Hops on X, Y, Z"),
    machine = ProtoField.uint8("tofu.machine", "Machine", base.DEC, NAMES),
    tlps = ProtoField.uint32("tofu.tlps", "TLPs in the burst"),
    bytes = ProtoField.uint64("tofu.bytes", "Bytes on the wire"),
    model = ProtoField.uint64("tofu.model_ps", "Modelled time (ps)"),

    l_seq = ProtoField.uint16("tofu.link.seq", "SEQ"),
    l_lanes = ProtoField.uint8("tofu.link.lanes", "Spread on so many lanes"),
    l_stat = ProtoField.uint8("tofu.link.stat", "STAT (lanes of the other direction that are bad)",
        base.HEX),
    l_spoilt = ProtoField.uint8("tofu.link.spoilt", "Lanes on which it is spoilt", base.HEX),
    l_check = ProtoField.uint8("tofu.link.check", "What its receiver finds", base.DEC, CHECKS),
    l_again = ProtoField.bool("tofu.link.again", "Sent again", 8, nil, 1),
    l_tlp = ProtoField.uint32("tofu.link.tlp", "Number of the TLP in its packet"),
    l_lcrc = ProtoField.uint32("tofu.link.lcrc", "LCRC", base.HEX),
    l_lcrc_good = ProtoField.bool("tofu.link.lcrc.good", "LCRC is right"),
    slice = ProtoField.bytes("tofu.slice", "Slice"),
    slice_lane = ProtoField.uint8("tofu.slice.lane", "Lane"),
    slice_routing = ProtoField.bytes("tofu.slice.routing", "Routing header"),
    slice_tlp = ProtoField.bytes("tofu.slice.tlp", "TLP"),
    slice_tail = ProtoField.bytes("tofu.slice.tail", "DLLP, other control, F"),
    slice_spoilt = ProtoField.bool("tofu.slice.spoilt", "Spoilt on its way"),
    slice_fcs = ProtoField.uint24("tofu.slice.fcs", "FCS", base.HEX),
    slice_fcs_good = ProtoField.bool("tofu.slice.fcs.good", "FCS is right"),
    d_kind = ProtoField.uint8("tofu.dllp.kind", "DLLP", base.DEC, DLLPS),
    d_seq = ProtoField.uint16("tofu.dllp.seq", "Frame"),
    d_vc = ProtoField.uint8("tofu.dllp.vc", "Of virtual channel"),
    d_total = ProtoField.uint16("tofu.dllp.total", "Rows that left its queue"),

    r_units = ProtoField.uint8("tofu.routing.len", "LEN (TLP units of 32 bytes, less one)"),
    r_path = ProtoField.string("tofu.routing.path", "Path (A, B, C)"),
    r_distances = ProtoField.string("tofu.routing.distances", "Hops on X, Y, Z"),
    r_target = ProtoField.string("tofu.routing.target", "Target A, B, C"),
    r_tni = ProtoField.uint8("tofu.routing.tni", "Target TNI"),
    r_barrier = ProtoField.bool("tofu.routing.barrier", "Barrier"),
    r_system = ProtoField.bool("tofu.routing.system", "System"),

    t_kind = ProtoField.uint8("tofu.tlp.kind", "TLP kind"),
    t_length = ProtoField.uint16("tofu.tlp.length", "Payload length"),
    t_tni = ProtoField.uint8("tofu.tlp.tni", "Sender's TNI"),
    t_source = ProtoField.string("tofu.tlp.source", "Sender"),
    t_payload = ProtoField.bytes("tofu.tlp.payload", "Payload"),
    t_ecrc = ProtoField.uint32("tofu.tlp.ecrc", "ECRC", base.HEX),
    t_ecrc_good = ProtoField.bool("tofu.tlp.ecrc.good", "ECRC is right"),

    cq = ProtoField.uint8("tofu.cq", "Control queue of the initiator"),
    sps = ProtoField.uint8("tofu.sps", "Session advance"),
    index = ProtoField.uint16("tofu.index", "Command"),
    generation = ProtoField.uint32("tofu.generation", "Command generation"),
    gpid = ProtoField.uint64("tofu.gpid", "Group process id", base.HEX),
    flags = ProtoField.uint64("tofu.header2", "Second command header", base.HEX),
    edata = ProtoField.uint16("tofu.edata", "Edata", base.HEX),
    strong = ProtoField.bool("tofu.strong_order", "Strong order"),
    remote_cq = ProtoField.uint8("tofu.remote.cq", "Target's control queue"),
    remote_stag = ProtoField.uint32("tofu.remote.stag", "Target's steering tag"),
    remote_offset = ProtoField.uint64("tofu.remote.offset", "Target's offset", base.HEX),
    local_cq = ProtoField.uint8("tofu.local.cq", "Initiator's control queue"),
    local_stag = ProtoField.uint32("tofu.local.stag", "Initiator's steering tag"),
    local_offset = ProtoField.uint64("tofu.local.offset", "Initiator's offset", base.HEX),
    position = ProtoField.uint32("tofu.position", "Position in the message"),
    length = ProtoField.uint32("tofu.length", "Bytes of this burst"),
    total = ProtoField.uint32("tofu.total", "Bytes of the message"),
    mtu = ProtoField.uint32("tofu.mtu", "Bytes of payload in a TLP"),
    op = ProtoField.uint8("tofu.op", "Operation", base.DEC, OPS),
    operand = ProtoField.uint64("tofu.operand", "Operand", base.HEX),
    compare = ProtoField.uint64("tofu.compare", "Compared with", base.HEX),
    rcode = ProtoField.uint8("tofu.rcode", "Result code", base.HEX),
    done = ProtoField.uint32("tofu.done", "Bytes done"),
    request_ps = ProtoField.uint64("tofu.request_ps", "Modelled time of the request (ps)"),
    old = ProtoField.uint64("tofu.old", "Former value", base.HEX),
    data = ProtoField.bytes("tofu.data", "Data"),

    w_channel = ProtoField.uint8("tofu.tnw.channel", "Channel"),
    w_last = ProtoField.bool("tofu.tnw.last", "Last packet of its message"),
    w_sequence = ProtoField.uint16("tofu.tnw.sequence", "Sequence number"),
    w_offset = ProtoField.uint16("tofu.tnw.offset", "Offset in the message (128 bytes)"),
    w_data = ProtoField.bytes("tofu.tnw.data", "Data"),
    w_crc = ProtoField.uint32("tofu.tnw.crc", "CRC", base.HEX),
    w_crc_good = ProtoField.bool("tofu.tnw.crc.good", "CRC is right"),
    w_from = ProtoField.uint16("tofu.tnw.from", "Life of the sender"),
    w_to = ProtoField.uint16("tofu.tnw.to", "Life of the receiver"),
    w_limit = ProtoField.string("tofu.tnw.limits", "Packets that may have been sent, by channel"),

    s_source = ProtoField.uint8("tofu.signal.source", "From gate"),
    s_target = ProtoField.uint8("tofu.signal.target", "For gate"),
    s_op = ProtoField.uint8("tofu.signal.op", "Operation", base.DEC, SIGNAL_OPS),
    s_bseq = ProtoField.uint32("tofu.signal.bseq", "Round"),
    s_value = ProtoField.uint64("tofu.signal.value", "Value", base.HEX),
}
for _, field in pairs(f) do
    table.insert(tofu.fields, field)
end

local g = {
    version = ProtoField.uint8("ipot.version", "Version", base.DEC, nil, 0xf0),
    kind = ProtoField.uint8("ipot.kind", "Kind", base.DEC, IP_KINDS, 0x0f),
    offload = ProtoField.bool("ipot.takes_offloaded", "Sender takes offloaded frames", 8,
        nil, 1),
    acknowledge = ProtoField.bool("ipot.acknowledge", "To be acknowledged", 8, nil, 2),
    rendezvous = ProtoField.bool("ipot.rendezvous", "Sender fetches frames", 8, nil, 4),
    more_queues = ProtoField.uint8("ipot.more_queues", "Further TNIs at which the sender listens",
        base.DEC, nil, 0x30),
    split = ProtoField.bool("ipot.split", "Sender takes split requests", 8, nil, 0x40),
    refused = ProtoField.bool("ipot.refused", "Could not be fetched", 8, nil, 8),
    total = ProtoField.uint16("ipot.total", "Bytes of the frame"),
    offset = ProtoField.uint16("ipot.offset", "Offset of the fragment"),
    length = ProtoField.uint16("ipot.length", "Bytes of the fragment"),
    id = ProtoField.uint32("ipot.id", "Frame id"),
    sum = ProtoField.uint32("ipot.sum", "Sum", base.HEX),
    sum_good = ProtoField.bool("ipot.sum.good", "Sum is right"),
    origin = ProtoField.string("ipot.origin", "Origin"),
    fragment = ProtoField.bytes("ipot.fragment", "Fragment"),
    fragments = ProtoField.uint32("ipot.fragments", "Reassembled from fragments"),

    checksum = ProtoField.bool("ipot.metadata.checksum", "Checksum is to be completed", 8, nil, 1),
    segments = ProtoField.uint8("ipot.metadata.segments", "Segments", base.DEC, SEGMENTS, 0x7f),
    cwr = ProtoField.bool("ipot.metadata.cwr", "CWR is for the first segment", 8, nil, 0x80),
    size = ProtoField.uint16("ipot.metadata.size", "Bytes of payload of a segment"),
    start = ProtoField.uint16("ipot.metadata.start", "Checksum is over what begins at"),
    at = ProtoField.uint16("ipot.metadata.at", "Checksum is behind that at"),
    place = ProtoField.uint64("ipot.place", "To be fetched from", base.HEX),
    rest = ProtoField.uint32("ipot.rest", "Bytes to fetch"),
    head = ProtoField.bytes("ipot.head", "First bytes of the frame"),
}
for _, field in pairs(g) do
    table.insert(ipot.fields, field)
end

local e_short = ProtoExpert.new(
    "tofu.short", "Cut off or too short", expert.group.MALFORMED, expert.severity.ERROR)
local e_version = ProtoExpert.new(
    "tofu.unknown", "Unknown version or kind", expert.group.UNDECODED, expert.severity.WARN)
local e_ecrc = ProtoExpert.new(
    "tofu.ecrc_wrong", "Wrong ECRC", expert.group.CHECKSUM, expert.severity.ERROR)
local e_lost = ProtoExpert.new(
    "tofu.lost", "Lost here", expert.group.SEQUENCE, expert.severity.WARN)
local e_fcs = ProtoExpert.new(
    "tofu.slice.fcs_wrong", "Wrong FCS", expert.group.CHECKSUM, expert.severity.ERROR)
local e_spoilt = ProtoExpert.new(
    "tofu.slice.was_spoilt", "Spoilt on its lane", expert.group.CHECKSUM, expert.severity.WARN)
local e_damaged_frame = ProtoExpert.new(
    "tofu.link.damaged", "Damaged on the link", expert.group.CHECKSUM, expert.severity.WARN)
local e_again = ProtoExpert.new(
    "tofu.link.sent_again", "Sent again", expert.group.SEQUENCE, expert.severity.NOTE)
local e_absent = ProtoExpert.new(
    "tofu.absent", "Not there in this generation", expert.group.PROTOCOL, expert.severity.WARN)
tofu.experts = {
    e_short, e_version, e_ecrc, e_lost, e_absent, e_fcs, e_spoilt, e_damaged_frame, e_again,
}
local e_malformed = ProtoExpert.new(
    "ipot.malformed", "Malformed IP over Tofu", expert.group.MALFORMED, expert.severity.ERROR)
local e_spoofed = ProtoExpert.new(
    "ipot.spoofed", "Origin is not the sender", expert.group.SECURITY, expert.severity.WARN)
local e_damaged = ProtoExpert.new(
    "ipot.damaged", "Sum is wrong", expert.group.CHECKSUM, expert.severity.ERROR)
ipot.experts = { e_malformed, e_spoofed, e_damaged }

local ethernet = Dissector.get("eth_withoutfcs")

local function coords(range)
    local c = {}
    for i = 0, range:len() - 1 do
        c[i + 1] = tostring(range(i, 1):uint())
    end
    return "(" .. table.concat(c, ",") .. ")"
end

local function signed(byte)
    return byte < 128 and byte or byte - 256
end

-- A field of `width` bits of a little-endian qword.
local function field(range, first, width)
    return range:le_uint64():rshift(first):band(UInt64(2 ^ width - 1, 0)):tonumber()
end

local crc_table
local function crc32(range)
    if not crc_table then
        crc_table = {}
        for n = 0, 255 do
            local c = n
            for _ = 1, 8 do
                c = band(c, 1) == 1 and bxor(rshift(c, 1), 0xedb88320) or rshift(c, 1)
            end
            crc_table[n] = c
        end
    end
    local bytes = range:bytes()
    local crc = 0xffffffff
    for i = 0, bytes:len() - 1 do
        crc = bxor(rshift(crc, 8), crc_table[band(bxor(crc, bytes:get_index(i)), 0xff)])
    end
    return bxor(crc, 0xffffffff) % 2 ^ 32
end

-- The check sequence of a slice: 24 bits, generator 0x5d6dcb, highest bit first.
local fcs_table
local function fcs(bytes)
    if not fcs_table then
        fcs_table = {}
        for n = 0, 255 do
            local c = n * 0x10000
            for _ = 1, 8 do
                local high = band(c, 0x800000) ~= 0
                c = band(c * 2, 0xffffff)
                c = high and bxor(c, 0x5d6dcb) or c
            end
            fcs_table[n] = c
        end
    end
    local crc = 0xffffff
    for i = 0, bytes:len() - 1 do
        local index = bxor(rshift(crc, 16), bytes:get_index(i))
        crc = bxor(band(crc * 0x100, 0xffffff), fcs_table[index])
    end
    return crc
end

-- RFC 1071 with little-endian words of 32 bits.
local function frame_sum(bytes)
    local sum, n = 0, bytes:len()
    for at = 0, n - 1, 4 do
        local word, scale = 0, 1
        for i = at, math.min(at + 3, n - 1) do
            word = word + bytes:get_index(i) * scale
            scale = scale * 256
        end
        sum = sum + word
    end
    while sum >= 2 ^ 32 do
        sum = sum % 2 ^ 32 + math.floor(sum / 2 ^ 32)
    end
    return sum == 0 and 0xffffffff or sum
end

-- Frames of IP over Tofu that are being reassembled, by place and frame, and those that are
-- complete, by the number of the record that completed them.
local partial, complete = {}, {}
local MOST_PARTIAL, partial_count = 4096, 0

function tofu.init()
    partial, complete, partial_count = {}, {}, 0
end

local function packed(origin)
    local part = function(first, width)
        return math.floor(origin / 2 ^ first) % 2 ^ width
    end
    return string.format("(%d,%d,%d,%d,%d,%d)",
        part(14, 5), part(9, 5), part(4, 5), part(3, 1), part(1, 2), part(0, 1))
end

-- What is left to do with an offloaded frame.
local function dissect_metadata(range, tree)
    local metadata = tree:add(ipot, range, "Offload metadata")
    metadata:add(g.checksum, range(0, 1))
    metadata:add(g.segments, range(1, 1))
    metadata:add(g.cwr, range(1, 1))
    metadata:add(g.size, range(2, 2))
    metadata:add(g.start, range(4, 2))
    metadata:add(g.at, range(6, 2))
end

-- A whole frame, with what is in front of it if it is offloaded.
local function hand_over(whole, kind, tree, pinfo, root)
    local frame = whole
    if kind == OFFLOADED then
        if whole:len() <= METADATA then
            tree:add_proto_expert_info(e_malformed)
            return
        end
        dissect_metadata(whole(0, METADATA), tree)
        frame = whole(METADATA):tvb()
    end
    ethernet:call(frame, pinfo, root)
end

-- Packets without a fragment of a frame: about another node's broadcast, or about a frame that its
-- receiver reads from the sender's memory.
local function dissect_message(payload, kind, origin, pinfo, tree)
    local total, offset, length =
        payload(2, 2):uint(), payload(4, 2):uint(), payload(6, 2):uint()
    local id, right = payload(8, 4):uint(), total == 0 and length == 0
    if kind == ACKNOWLEDGEMENT then
        right = right and offset % FRAGMENT == 0
        pinfo.cols.info = string.format(
            "acknowledgement, frame %d of %s, bytes from %d", id, origin, offset)
    elseif kind == DONE then
        right = right and offset == 0
        tree:add(g.refused, payload(1, 1))
        pinfo.cols.info = string.format("done, frames up to %d", id)
    elseif kind == SPLIT then
        right = total == 0 and offset == 0 and length >= METADATA + 12 + 14
            and payload:len() >= IP_HEADER + length
        if right then
            local body = payload(IP_HEADER, length)
            dissect_metadata(body(0, METADATA), tree)
            tree:add(g.place, body(METADATA, 8))
            tree:add(g.rest, body(METADATA + 8, 4))
            tree:add(g.head, body(METADATA + 12))
            total = length - METADATA - 12 + body(METADATA + 8, 4):uint()
        end
        pinfo.cols.info = string.format("split request, frame %d of %d bytes", id, total)
    else
        right = total >= METADATA + 14 and offset == 0 and length == METADATA + 8
            and payload:len() >= IP_HEADER + length
        if right then
            dissect_metadata(payload(IP_HEADER, METADATA), tree)
            tree:add(g.place, payload(IP_HEADER + METADATA, 8))
        end
        pinfo.cols.info = string.format("request, frame %d of %d bytes", id, total)
    end
    if not right then
        tree:add_proto_expert_info(e_malformed)
    end
end

-- Returns whether the payload is IP over Tofu.
local function dissect_ip(payload, seen, pinfo, root)
    if payload:len() < IP_HEADER then
        return false
    end
    local version, kind = rshift(payload(0, 1):uint(), 4), band(payload(0, 1):uint(), 0xf)
    local total, offset, length =
        payload(2, 2):uint(), payload(4, 2):uint(), payload(6, 2):uint()
    local is_fragment = kind < ACKNOWLEDGEMENT
    if version ~= 1 or kind > SPLIT or (is_fragment and total < 14) then
        return false
    end
    local tree = root:add(ipot, payload)
    tree:add(g.version, payload(0, 1))
    tree:add(g.kind, payload(0, 1))
    tree:add(g.offload, payload(1, 1))
    tree:add(g.acknowledge, payload(1, 1))
    tree:add(g.rendezvous, payload(1, 1))
    tree:add(g.more_queues, payload(1, 1))
    tree:add(g.split, payload(1, 1))
    tree:add(g.total, payload(2, 2))
    tree:add(g.offset, payload(4, 2))
    tree:add(g.length, payload(6, 2))
    tree:add(g.id, payload(8, 4))
    tree:add(g.sum, payload(12, 4))
    local origin = packed(payload(16, 4):uint())
    tree:add(g.origin, payload(16, 4), origin)
    pinfo.cols.protocol = "IPoT"
    if not is_fragment then
        dissect_message(payload, kind, origin, pinfo, tree)
        return true
    end
    local what =
        string.format("%s, frame %d of %d bytes", IP_KINDS[kind], payload(8, 4):uint(), total)
    pinfo.cols.info = what .. string.format(", bytes %d to %d", offset, offset + length - 1)
    local fits = offset < total and length == math.min(FRAGMENT, total - offset)
    if offset % FRAGMENT ~= 0 or not fits then
        tree:add_proto_expert_info(e_malformed)
        return true
    end
    if kind ~= BROADCAST and origin ~= seen.src then
        tree:add_proto_expert_info(e_spoofed)
    end
    if payload:len() < IP_HEADER + length then
        -- More than what the capture has kept.
        return true
    end
    local fragment = payload(IP_HEADER, length)
    tree:add(g.fragment, fragment)
    if length == total then
        hand_over(fragment:bytes():tvb("Frame over Tofu"), kind, tree, pinfo, root)
        return true
    end
    if not pinfo.visited then
        local key = seen.key .. origin .. payload(8, 4):uint() .. "/" .. kind .. "/" .. total
        local frame = partial[key]
        if not frame then
            if partial_count >= MOST_PARTIAL then
                partial, partial_count = {}, 0
            end
            frame = { have = 0, fragments = {} }
            partial[key] = frame
            partial_count = partial_count + 1
        end
        if not frame.fragments[offset] then
            frame.fragments[offset] = fragment:bytes()
            frame.have = frame.have + length
        end
        if frame.have == total then
            local bytes, count = ByteArray.new(), 0
            for at = 0, total - 1, FRAGMENT do
                bytes:append(frame.fragments[at])
                count = count + 1
            end
            complete[pinfo.number] = {
                bytes = bytes,
                count = count,
                good = frame_sum(bytes) == payload(12, 4):uint(),
            }
            partial[key] = nil
            partial_count = partial_count - 1
        end
    end
    local whole = complete[pinfo.number]
    if whole then
        tree:add(g.fragments, whole.count):set_generated()
        tree:add(g.sum_good, whole.good):set_generated()
        if whole.good then
            hand_over(whole.bytes:tvb("Frame over Tofu"), kind, tree, pinfo, root)
        else
            tree:add_proto_expert_info(e_damaged)
        end
    end
    return true
end

local PREAMBLE, GAP = "fbaaaaaaaaaaaaab", "fd07070707070707"

-- `width` bits of a routing header from the bit `first` on become `value`. The header is a table
-- of its bytes, lowest first.
local function put_bits(header, first, width, value)
    for bit = first, first + width - 1 do
        local at, mask = math.floor(bit / 8) + 1, 2 ^ (bit % 8)
        local set = math.floor(value / 2 ^ (bit - first)) % 2 == 1
        local was = math.floor(header[at] / mask) % 2 == 1
        if set ~= was then
            header[at] = header[at] + (set and mask or -mask)
        end
    end
end

-- The slice of a frame for a lane, as TofuD's links send it (TofuD paper, figures 5 and 6): the
-- bytes that its FCS is over.
local function cut_slice(routing, tlp, dllp, lcrc, marked, cut, lane)
    local bytes = ByteArray.new()
    bytes:append(routing)
    local control = ByteArray.new(lcrc .. "00000000")
    local flag = ByteArray.new(marked and "ff" or "00")
    if cut then
        for at = 0, tlp:len() - 16, 16 do
            bytes:append(tlp:subset(at + 8 * lane, 8))
        end
        bytes:append(dllp:subset(4 * lane, 4))
        bytes:append(control:subset(4 * lane, 4))
        bytes:append(flag)
        bytes:append(dllp:subset(8 + 4 * lane, 4))
        return bytes
    end
    bytes:append(tlp)
    for part = 0, 1 do
        bytes:append(dllp:subset(4 * part, 4))
        bytes:append(control:subset(4 * part, 4))
    end
    bytes:append(flag)
    bytes:append(dllp:subset(8, 4))
    bytes:append(ByteArray.new("000000"))
    bytes:append(flag)
    bytes:append(dllp:subset(12, 4))
    return bytes
end

-- What a modelled link made of a frame, and the slices that it sends.
local function dissect_link(part, frame, seen, pinfo, tree)
    local sub = tree:add(tofu, part, "Link")
    local seq, lanes, spoilt = part(0, 2):le_uint(), part(2, 1):uint(), part(4, 1):uint()
    if seen.kind ~= DLLP then
        sub:add_le(f.l_seq, part(0, 2))
        pinfo.cols.info:append(string.format(", SEQ %d", seq))
        sub:add_le(f.l_tlp, part(8, 4))
    end
    sub:add(f.l_lanes, part(2, 1))
    sub:add(f.l_stat, part(3, 1))
    sub:add(f.l_spoilt, part(4, 1))
    sub:add(f.l_check, part(5, 1))
    sub:add(f.l_again, part(6, 1))
    if part(5, 1):uint() == 2 then
        seen.damaged = true
        sub:add_proto_expert_info(e_damaged_frame)
        pinfo.cols.info:append(seen.kind == DLLP and ", lost" or ", damaged")
    end
    if band(part(6, 1):uint(), 1) ~= 0 then
        sub:add_proto_expert_info(e_again)
        pinfo.cols.info:append(", sent again")
    end
    if band(part(6, 1):uint(), 2) == 0 then
        return
    end
    sub:add_le(f.l_lcrc, part(12, 4))
    -- Of a DLLP there are headers without any TLP, then what it says.
    local dllp = ByteArray.new(string.rep("00", 16))
    local tlp = ByteArray.new()
    local size = 0
    if seen.kind == DLLP then
        if frame:len() < FRAME_HEADER + 16 then
            return
        end
        dllp = frame(FRAME_HEADER, 16):bytes()
    else
        size = (field(frame(0, 8), 0, 6) + 1) * 32
        if frame:len() < 8 + size then
            -- More than what the capture has kept.
            return
        end
        tlp = frame(8, size):bytes()
    end
    local header = {}
    for i = 0, 7 do
        header[i + 1] = frame(i, 1):uint()
    end
    local function routing(on_link)
        put_bits(header, 44, 2, on_link and seen.vc or 0)
        put_bits(header, 46, 3, on_link and lanes > 1 and 1 or 0)
        put_bits(header, 49, 2, on_link and part(3, 1):uint() or 0)
        put_bits(header, 51, 12, on_link and seq or 0)
        put_bits(header, 63, 1, 1)
        local hex = ""
        for i = 8, 1, -1 do
            hex = hex .. string.format("%02x", header[i])
        end
        return ByteArray.new(hex)
    end
    local checked = routing(false)
    checked:append(tlp)
    local good = crc32(checked:tvb("Frame without what a link adds")()) == part(12, 4):le_uint()
    sub:add(f.l_lcrc_good, part(12, 4), good):set_generated()
    local on_link, marked = routing(true), part(5, 1):uint() == 1 or seen.marked
    for lane = 0, 1 do
        local inner = cut_slice(on_link, tlp, dllp, part(12, 4):bytes():tohex(), marked,
            lanes > 1, lane)
        local said = part(16 + 3 * lane, 3)
        local right = fcs(inner) == said:uint()
        local slice = ByteArray.new(PREAMBLE)
        slice:append(inner)
        slice:append(said:bytes())
        slice:append(ByteArray.new(GAP))
        local all = slice:tvb("Slice on lane " .. lane)
        local title = string.format("Slice on lane %d, %d bytes", lane, all:len())
        local one = sub:add(tofu, all(), title)
        one:add(f.slice, all())
        one:add(f.slice_lane, lane):set_generated()
        one:add(f.slice_routing, all(8, 8))
        local middle = all:len() - 16 - 8 - 3 - (lanes > 1 and 13 or 29)
        if middle > 0 then
            one:add(f.slice_tlp, all(16, middle))
        end
        one:add(f.slice_tail, all(16 + middle, all:len() - 11 - 16 - middle))
        one:add(f.slice_fcs, all(all:len() - 11, 3))
        one:add(f.slice_fcs_good, right):set_generated()
        if not right then
            one:add_proto_expert_info(e_fcs)
        end
        local hit = band(rshift(spoilt, lane), 1) == 1
        one:add(f.slice_spoilt, hit):set_generated()
        if hit then
            one:add_proto_expert_info(e_spoilt)
        end
    end
end

-- What the receiver of frames tells their sender.
local function dissect_dllp(body, pinfo, tree)
    if body:len() < 16 then
        tree:add_proto_expert_info(e_short)
        return
    end
    local kind, number = body(0, 1):uint(), body(2, 2):le_uint()
    tree:add(f.d_kind, body(0, 1))
    if kind == ACK or kind == NACK then
        tree:add_le(f.d_seq, body(2, 2))
    elseif kind == UPDATE_FC then
        tree:add(f.d_vc, body(1, 1))
        tree:add_le(f.d_total, body(2, 2))
    end
    pinfo.cols.info:append(string.format(", %s %d", DLLPS[kind] or "unknown", number))
end

local function dissect_frame(frame, seen, pinfo, root, tree)
    if frame:len() < FRAME_HEADER then
        tree:add_proto_expert_info(e_short)
        return
    end
    local routing = frame(0, 8)
    local sub = tree:add(tofu, routing, "Routing header")
    local path = string.format("(%d,%d,%d)",
        field(routing, 6, 1), field(routing, 7, 2), field(routing, 9, 1))
    local hops = string.format("(%d,%d,%d)", signed(field(routing, 10, 8)),
        signed(field(routing, 18, 8)), signed(field(routing, 26, 8)))
    local target = string.format("(%d,%d,%d)",
        field(routing, 34, 1), field(routing, 35, 2), field(routing, 37, 1))
    sub:add(f.r_units, routing, field(routing, 0, 6))
    sub:add(f.r_path, routing, path)
    sub:add(f.r_distances, routing, hops)
    sub:add(f.r_target, routing, target)
    sub:add(f.r_tni, routing, field(routing, 38, 3))
    sub:add(f.r_barrier, routing, field(routing, 41, 1) == 1)
    sub:add(f.r_system, routing, field(routing, 42, 1) == 1)

    local header = frame(8, 8)
    sub = tree:add(tofu, header, "TLP header")
    local length = field(header, 8, 12)
    sub:add(f.t_kind, header, field(header, 0, 8))
    sub:add(f.t_length, header, length)
    sub:add(f.t_tni, header, field(header, 20, 3))
    sub:add(f.t_source, header, string.format("(%d,%d,%d,%d,%d,%d)", field(header, 24, 8),
        field(header, 32, 8), field(header, 40, 8), field(header, 48, 1), field(header, 49, 2),
        field(header, 51, 1)))

    if seen.kind ~= SYSTEM and seen.kind ~= RAW then
        return
    end
    local size = 8 + (field(routing, 0, 6) + 1) * 32
    if frame:len() == size then
        local ecrc = frame(size - 4, 4)
        local good = crc32(frame(8, size - 12)) == ecrc:le_uint()
        tree:add_le(f.t_ecrc, ecrc)
        tree:add(f.t_ecrc_good, ecrc, good):set_generated()
        if not good then
            tree:add_proto_expert_info(e_ecrc)
            pinfo.cols.info:append(", wrong ECRC")
            return
        end
    end
    local have = math.min(length, math.max(frame:len() - FRAME_HEADER, 0))
    if have < length then
        tree:add_proto_expert_info(e_short)
    end
    if have == 0 then
        return
    end
    local payload = frame(FRAME_HEADER, have)
    tree:add(f.t_payload, payload)
    -- A damaged frame is not taken in: it comes again.
    if seen.kind == SYSTEM and not seen.damaged then
        dissect_ip(payload:tvb("System packet"), seen, pinfo, root)
    end
end

-- Marks a number of something that the generation does not have.
local function check(item, number, have)
    if number >= have then
        item:add_proto_expert_info(e_absent, string.format("There are only 0 to %d", have - 1))
    end
end

-- Without a queue of its own, an address has it in the upper four bits of the steering tag (ours).
local function stag(tree, range, cq, tag, offset, machine)
    local queue = field(range, 58, 6)
    local item = tree:add(cq, range, queue)
    check(item, queue, machine.cqs)
    tree:add(tag, range, field(range, 40, machine.stag))
    tree:add(offset, range, range:le_uint64():band(UInt64(0xffffffff, 0xff)))
end

local function dissect_request(body, seen, pinfo, tree)
    if body:len() < 56 then
        tree:add_proto_expert_info(e_short)
        return
    end
    local item = tree:add(f.cq, body(0, 1))
    check(item, body(0, 1):uint(), seen.machine.cqs)
    tree:add(f.sps, body(1, 1))
    tree:add_le(f.index, body(2, 2))
    tree:add_le(f.generation, body(4, 4))
    tree:add_le(f.gpid, body(8, 8))
    tree:add_le(f.flags, body(16, 8))
    tree:add(f.strong, body(16, 8), field(body(16, 8), 8, 1) == 1)
    tree:add(f.edata, body(16, 8), field(body(16, 8), 16, 16))
    stag(tree, body(24, 8), f.remote_cq, f.remote_stag, f.remote_offset, seen.machine)
    stag(tree, body(32, 8), f.local_cq, f.local_stag, f.local_offset, seen.machine)
    tree:add_le(f.position, body(40, 4))
    tree:add_le(f.length, body(44, 4))
    tree:add_le(f.total, body(48, 4))
    tree:add_le(f.mtu, body(52, 4))
    pinfo.cols.info:append(string.format(", %d bytes at %d of %d", body(44, 4):le_uint(),
        body(40, 4):le_uint(), body(48, 4):le_uint()))
    if seen.kind == ATOMIC then
        if not seen.machine.atomics then
            tree:add_proto_expert_info(e_absent, "There are no atomic commands")
        end
        if body:len() < 80 then
            tree:add_proto_expert_info(e_short)
            return
        end
        tree:add(f.op, body(56, 1))
        tree:add_le(f.operand, body(64, 8))
        tree:add_le(f.compare, body(72, 8))
    elseif seen.kind == PUT and body:len() > 56 then
        tree:add(f.data, body(56))
    end
end

local function dissect_answer(body, seen, pinfo, tree)
    if body:len() < 32 then
        tree:add_proto_expert_info(e_short)
        return
    end
    tree:add(f.cq, body(0, 1))
    tree:add(f.rcode, body(1, 1))
    tree:add_le(f.index, body(2, 2))
    tree:add_le(f.generation, body(4, 4))
    tree:add_le(f.position, body(8, 4))
    tree:add_le(f.length, body(12, 4))
    tree:add_le(f.done, body(16, 4))
    tree:add_le(f.request_ps, body(24, 8))
    pinfo.cols.info:append(string.format(", result %#x, %d bytes", body(1, 1):uint(),
        body(16, 4):le_uint()))
    if seen.kind == ATOMIC_ANSWER then
        if body:len() < 40 then
            tree:add_proto_expert_info(e_short)
            return
        end
        tree:add_le(f.old, body(32, 8))
    elseif seen.kind == GET_ANSWER and body:len() > 32 then
        tree:add(f.data, body(32))
    end
end

local function dissect_signal(body, seen, pinfo, tree)
    if body:len() < 16 then
        tree:add_proto_expert_info(e_short)
        return
    end
    check(tree:add(f.s_source, body(0, 1)), body(0, 1):uint(), seen.machine.gates)
    check(tree:add(f.s_target, body(1, 1)), body(1, 1):uint(), seen.machine.gates)
    tree:add(f.s_op, body(2, 1))
    tree:add_le(f.s_bseq, body(4, 4))
    tree:add_le(f.gpid, body(8, 8))
    for at = 16, body:len() - 8, 8 do
        tree:add_le(f.s_value, body(at, 8))
    end
    pinfo.cols.info:append(string.format(", gate %d to %d, round %d", body(0, 1):uint(),
        body(1, 1):uint(), body(4, 4):le_uint()))
end

-- A packet or command on a link of TNW. The check sequence of data covers the lives of both ends,
-- too, which it does not name.
local function dissect_tnw(body, seen, pinfo, tree)
    if seen.kind == TNW_DATA then
        if body:len() < 4 then
            tree:add_proto_expert_info(e_short)
            return
        end
        local header = body(0, 4):le_uint()
        local channel, last = band(header, 7), band(header, 8) ~= 0
        local sequence, offset = band(rshift(header, 4), 0xfff), rshift(header, 16)
        tree:add(f.w_channel, body(0, 1), channel)
        tree:add(f.w_last, body(0, 1), last)
        tree:add(f.w_sequence, body(0, 2), sequence)
        tree:add(f.w_offset, body(2, 2), offset)
        if body:len() >= 136 then
            tree:add(f.w_data, body(4, 128))
            tree:add_le(f.w_crc, body(132, 4))
        else
            tree:add_proto_expert_info(e_short)
        end
        pinfo.cols.info:append(string.format(", channel %d, packet %d%s, sequence %d", channel,
            offset, last and " (last)" or "", sequence))
        return
    end
    if body:len() < 32 then
        tree:add_proto_expert_info(e_short)
        return
    end
    tree:add_le(f.w_from, body(2, 2))
    tree:add_le(f.w_to, body(4, 2))
    tree:add_le(f.w_sequence, body(6, 2))
    local limits = {}
    for channel = 0, 7 do
        limits[channel + 1] = body(8 + 2 * channel, 2):le_uint()
    end
    tree:add(f.w_limit, body(8, 16), table.concat(limits, " "))
    tree:add_le(f.w_crc, body(28, 4))
    tree:add(f.w_crc_good, body(28, 4), crc32(body(0, 28)) == body(28, 4):le_uint())
    pinfo.cols.info:append(string.format(", sequence %d", body(6, 2):le_uint()))
end

function tofu.dissector(tvb, pinfo, root)
    pinfo.cols.protocol = "Tofu"
    local tree = root:add(tofu, tvb())
    if tvb:len() < RECORD_HEADER then
        pinfo.cols.info = "cut off"
        tree:add_proto_expert_info(e_short)
        return tvb:len()
    end
    local header = tvb(1, 1):uint()
    tree:add(f.version, tvb(0, 1))
    tree:add(f.header, tvb(1, 1))
    if tvb(0, 1):uint() ~= 1 or header < RECORD_HEADER or header > tvb:len() then
        pinfo.cols.info = "unknown record header"
        tree:add_proto_expert_info(e_version)
        return tvb:len()
    end
    local number = tvb(35, 1):uint()
    local machine = GENERATIONS[number]
    local item = tree:add(f.machine, tvb(35, 1))
    if not machine then
        if number ~= TNW then
            item:add_proto_expert_info(e_version)
        end
        machine = GENERATIONS[0]
    end
    local at = tvb(2, 1):uint()
    local place = at < 16 and "tni" .. at or "port " .. (PORTS[at - 16] or at - 16)
    local seen = {
        machine = machine,
        kind = tvb(6, 1):uint(),
        src = coords(tvb(16, 6)),
        dst = coords(tvb(22, 6)),
        key = coords(tvb(8, 6)) .. place .. tvb(3, 1):uint(),
        vc = tvb(4, 1):uint() < 4 and tvb(4, 1):uint() or 0,
        marked = band(tvb(7, 1):uint(), 0x80) ~= 0,
    }
    tree:add(f.node, tvb(8, 6), coords(tvb(8, 6)))
    tree:add(f.place, tvb(2, 1), place)
    tree:add(f.direction, tvb(3, 1))
    if tvb(4, 1):uint() ~= 0xff then
        tree:add(f.vc, tvb(4, 1))
    end
    tree:add(f.class, tvb(5, 1))
    tree:add(f.kind, tvb(6, 1))
    tree:add(f.way, tvb(7, 1))
    tree:add(f.nullified, tvb(7, 1))
    if seen.kind < DLLP then
        local tnis = seen.kind == SIGNAL and machine.barrier_tnis or machine.tnis
        check(tree:add(f.src_tni, tvb(14, 1)), tvb(14, 1):uint(), tnis)
        check(tree:add(f.dst_tni, tvb(15, 1)), tvb(15, 1):uint(), tnis)
    end
    tree:add(f.src, tvb(16, 6), seen.src)
    tree:add(f.dst, tvb(22, 6), seen.dst)
    tree:add(f.path, tvb(28, 3), coords(tvb(28, 3)))
    local way = band(tvb(7, 1):uint(), 0x7f)
    if way == 2 then
        tree:add(f.hop, tvb(31, 1))
    elseif way == 1 then
        tree:add(f.distances, tvb(32, 3), string.format("(%d,%d,%d)", tvb(32, 1):int(),
            tvb(33, 1):int(), tvb(34, 1):int()))
    end
    tree:add_le(f.tlps, tvb(36, 4))
    tree:add_le(f.bytes, tvb(40, 8))
    tree:add_le(f.model, tvb(48, 8))

    pinfo.cols.src = seen.src
    pinfo.cols.dst = seen.dst
    local direction = tvb(3, 1):uint()
    pinfo.cols.info = string.format("%s, %s %s", KINDS[seen.kind] or "unknown kind", place,
        DIRECTIONS[direction] or direction)
    if direction > 1 then
        tree:add_proto_expert_info(e_lost)
    end

    if tvb:len() == header then
        return tvb:len()
    end
    local frame = tvb(header):tvb()
    if number == TNW then
        dissect_tnw(frame, seen, pinfo, tree)
        return tvb:len()
    end
    if header >= RECORD_HEADER + LINK_PART and frame:len() >= 8 then
        dissect_link(tvb(RECORD_HEADER, LINK_PART), frame, seen, pinfo, tree)
    end
    if seen.kind == DLLP then
        dissect_dllp(frame:len() > FRAME_HEADER and frame(FRAME_HEADER):tvb() or frame, pinfo, tree)
        return tvb:len()
    end
    dissect_frame(frame, seen, pinfo, root, tree)
    local body = frame:len() > FRAME_HEADER and frame(FRAME_HEADER):tvb()
    if seen.kind == SYSTEM or seen.kind == RAW then
        return tvb:len()
    elseif not KINDS[seen.kind] then
        tree:add_proto_expert_info(e_version)
    elseif not body then
        tree:add_proto_expert_info(e_short)
    elseif seen.kind <= ATOMIC then
        dissect_request(body, seen, pinfo, tree)
    elseif seen.kind <= ATOMIC_ANSWER then
        dissect_answer(body, seen, pinfo, tree)
    else
        dissect_signal(body, seen, pinfo, tree)
    end
    return tvb:len()
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, tofu)
