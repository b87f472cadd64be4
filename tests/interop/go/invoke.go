package main

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"time"
)

// invokeTimeout covers requests that a broker passes on to a client.
const invokeTimeout = 10 * time.Second

type invokeFields struct {
	Address string
	Code    int
	Fields  map[string]string
}

// invoke sends one request for which the client has no method, as the administrators' tools do.
func invoke(fields invokeFields) (any, error) {
	connection, err := net.DialTimeout("tcp", fields.Address, invokeTimeout)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(invokeTimeout)); err != nil {
		return nil, err
	}
	header, err := json.Marshal(map[string]any{
		"code": fields.Code, "language": "GO", "version": 317, "opaque": 1, "flag": 0, "extFields": fields.Fields,
	})
	if err != nil {
		return nil, err
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(header)))
	if _, err := connection.Write(append(frame, header...)); err != nil {
		return nil, err
	}
	return answered(connection)
}

func answered(connection io.Reader) (any, error) {
	var lengths struct{ Frame, Header uint32 }
	if err := binary.Read(connection, binary.BigEndian, &lengths); err != nil {
		return nil, err
	}
	rest := make([]byte, lengths.Frame-4)
	if _, err := io.ReadFull(connection, rest); err != nil {
		return nil, err
	}
	var header struct {
		Code      int               `json:"code"`
		Remark    string            `json:"remark"`
		ExtFields map[string]string `json:"extFields"`
	}
	if err := json.Unmarshal(rest[:lengths.Header], &header); err != nil {
		return nil, err
	}
	return map[string]any{
		"code": header.Code, "remark": header.Remark, "fields": header.ExtFields, "body": string(rest[lengths.Header:]),
	}, nil
}
