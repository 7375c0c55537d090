package main

// A request is  length u32 (of what follows) · id u64 · group u32 · payload,
// a reply is    length u32 (of what follows) · id u64 · body, all little-endian.
// An append's body is one byte, 1 if it was acked. A request for group noGroup asks who leads: its
// body has one byte per group, the number of the leading node or zero.

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"raftwood/benchmarks/peers/load"
)

const (
	noGroup         = 1<<32 - 1
	requestTimeout  = 20 * time.Second
	frameBytesMax   = 16 << 20
	bufferBytes     = 256 << 10
	queuedFramesMax = 4096
)

var errFrameTooLong = errors.New("a frame is longer than 16 MB: is the peer another program?")

func readFrame(reader *bufio.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(reader, head[:]); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint32(head[:])
	if length > frameBytesMax {
		return nil, errFrameTooLong
	}
	frame := make([]byte, length)
	_, err := io.ReadFull(reader, frame)
	return frame, err
}

func replyFrame(id uint64, body []byte) []byte {
	frame := binary.LittleEndian.AppendUint32(make([]byte, 0, 12+len(body)), uint32(8+len(body)))
	return append(binary.LittleEndian.AppendUint64(frame, id), body...)
}

func requestFrame(id uint64, group uint32, payload []byte) []byte {
	frame := make([]byte, 0, 16+len(payload))
	frame = binary.LittleEndian.AppendUint32(frame, uint32(12+len(payload)))
	frame = binary.LittleEndian.AppendUint64(frame, id)
	return append(binary.LittleEndian.AppendUint32(frame, group), payload...)
}

// writeFrames joins the frames that wait into one write, until the connection breaks.
func writeFrames(connection net.Conn, frames <-chan []byte) {
	writer := bufio.NewWriterSize(connection, bufferBytes)
	broken := false
	for frame := range frames {
		if broken {
			continue
		}
		_, err := writer.Write(frame)
		if err == nil && len(frames) == 0 {
			err = writer.Flush()
		}
		broken = err != nil
	}
}

func serve(started *node, address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		load.Fail(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			load.Fail(err)
		}
		go serveConnection(started, connection)
	}
}

func serveConnection(started *node, connection net.Conn) {
	reader := bufio.NewReaderSize(connection, bufferBytes)
	replies := make(chan []byte, queuedFramesMax)
	go writeFrames(connection, replies)
	for {
		frame, err := readFrame(reader)
		if err != nil {
			return
		}
		id := binary.LittleEndian.Uint64(frame)
		group := binary.LittleEndian.Uint32(frame[8:])
		if group == noGroup {
			replies <- replyFrame(id, started.leaders())
			continue
		}
		request, err := started.host.Propose(started.sessions[group], frame[12:], requestTimeout)
		if err != nil {
			replies <- replyFrame(id, []byte{0})
			continue
		}
		go func() {
			result := <-request.ResultC()
			status := byte(0)
			if result.Completed() {
				status = 1
			}
			request.Release()
			replies <- replyFrame(id, []byte{status})
		}()
	}
}
