// The official Go client in one process, told what to do one line at a time.
//
// Each line on stdin is a JSON object: "do" names a command (see commands), the other fields belong to it.
// Each answer is one line on stdout: {"result": …} or {"error": "…"}. Producers and consumers are kept under the
// names that the caller gives them and work on between the lines. The end of stdin ends the process.
//
// Arguments: the name server's address, and "binary" to send binary headers instead of JSON ones.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	_ "unsafe" // for go:linkname
)

// The client can speak binary headers but has no option for it: the switch is a variable of an internal package.
//
//go:linkname codecType github.com/apache/rocketmq-client-go/v2/internal/remote.codecType
var codecType byte

const binaryHeaders = 1

var nameServer string

type command func(line []byte) (any, error)

var commands = map[string]command{
	"producer":        told(startProducer),
	"send":            told(send),
	"request":         told(request),
	"load":            told(startLoad),
	"acknowledged":    told(acknowledged),
	"stop load":       told(stopLoad),
	"transaction":     told(sendInTransaction),
	"checks":          told(transactionChecks),
	"consumer":        told(startPushConsumer),
	"heard":           told(heard),
	"pull consumer":   told(startPullConsumer),
	"poll":            told(poll),
	"pull":            told(pull),
	"pull from":       told(pullFrom),
	"offset":          told(currentOffset),
	"update offset":   told(updateOffset),
	"persist offsets": told(persistOffsets),
	"create topic":    told(createTopic),
	"delete topic":    told(deleteTopic),
	"topics":          told(topics),
	"queues":          told(queues),
	"groups":          told(groups),
	"invoke":          told(invoke),
	"stop":            told(stop),
}

func main() {
	nameServer = os.Args[1]
	if len(os.Args) > 2 && os.Args[2] == "binary" {
		codecType = binaryHeaders
	}
	lines := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		if err := answers.Encode(answerTo(line)); err != nil {
			return
		}
	}
}

func answerTo(line []byte) map[string]any {
	var head struct{ Do string }
	if err := json.Unmarshal(line, &head); err != nil {
		return map[string]any{"error": err.Error()}
	}
	run, known := commands[head.Do]
	if !known {
		return map[string]any{"error": "no such command: " + head.Do}
	}
	result, err := run(line)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return map[string]any{"result": result}
}

// told makes a command of a function that takes the fields of its line as a struct.
func told[Fields any](run func(Fields) (any, error)) command {
	return func(line []byte) (any, error) {
		var fields Fields
		if err := json.Unmarshal(line, &fields); err != nil {
			return nil, err
		}
		return run(fields)
	}
}

// running holds what was started, by the caller's name for it.
var running = map[string]interface{ Shutdown() error }{}

func keep(name string, started interface{ Shutdown() error }) error {
	if _, taken := running[name]; taken {
		return fmt.Errorf("%s is running already", name)
	}
	running[name] = started
	return nil
}

// find gives what runs under a name, if it is of the wanted kind.
func find[Kind any](name string) (Kind, error) {
	found, ok := running[name].(Kind)
	if !ok {
		return found, fmt.Errorf("%s is not running, or is of another kind", name)
	}
	return found, nil
}

func stop(fields struct{ Name string }) (any, error) {
	started, known := running[fields.Name]
	if !known {
		return nil, fmt.Errorf("%s is not running", fields.Name)
	}
	delete(running, fields.Name)
	return nil, started.Shutdown()
}
