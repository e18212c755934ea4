// Azure's client against a listener of AMQP 1.0: every message comes back as it was sent.
//
//	go-amqp URL [USER PASSWORD]
//
// Sends messages of one frame and of many, takes them back, and settles them in each way. With a user, it logs in by PLAIN,
// and tries a wrong password. Prints one line, and exits with 1 at the first difference.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/Azure/go-amqp"
)

const (
	queue        = "go-amqp"
	frameBytes   = 16384
	rounds       = 20
	timeout      = 30 * time.Second
	absentWithin = 500 * time.Millisecond
)

var sizes = []int{0, 1, 255, 256, 70000, 300000}

func check(condition bool, what string, values ...any) {
	if !condition {
		fmt.Printf("go-amqp: "+what+"\n", values...)
		os.Exit(1)
	}
}

func message(number, size int) *amqp.Message {
	body := make([]byte, size)
	for at := range body {
		body[at] = byte(at)
	}
	subject := "a subject"
	created := time.UnixMilli(1500).UTC()
	return &amqp.Message{
		Header: &amqp.MessageHeader{Durable: true, Priority: 7},
		Properties: &amqp.MessageProperties{
			MessageID: fmt.Sprint(number), CorrelationID: uint64(number), Subject: &subject, CreationTime: &created,
		},
		ApplicationProperties: map[string]any{
			"baMessageID": fmt.Sprintf("%d-id", number), "isTracingMessage": number%2 == 0, "count": int64(number),
		},
		Data: [][]byte{body},
	}
}

func compare(sent, came *amqp.Message) {
	check(bytes.Equal(came.GetData(), sent.GetData()), "a body of %d bytes came as one of %d", len(sent.GetData()), len(came.GetData()))
	check(came.Header.Durable && came.Header.Priority == 7, "the header is %+v", came.Header)
	theirs := came.Properties
	ours := sent.Properties
	check(theirs.MessageID == ours.MessageID && theirs.CorrelationID == ours.CorrelationID, "ids are %v, %v", theirs.MessageID, theirs.CorrelationID)
	check(*theirs.Subject == *ours.Subject && theirs.CreationTime.Equal(*ours.CreationTime), "properties are %+v", theirs)
	for name, value := range sent.ApplicationProperties {
		check(came.ApplicationProperties[name] == value, "%s is %v, not %v", name, came.ApplicationProperties[name], value)
	}
}

func connect(ctx context.Context, arguments []string) (*amqp.Conn, error) {
	login := amqp.SASLTypeAnonymous()
	if len(arguments) == 3 {
		login = amqp.SASLTypePlain(arguments[1], arguments[2])
	}
	return amqp.Dial(ctx, arguments[0], &amqp.ConnOptions{SASLType: login, MaxFrameSize: frameBytes})
}

func must[T any](value T, err error) T {
	check(err == nil, "%v", err)
	return value
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	arguments := os.Args[1:]
	connection := must(connect(ctx, arguments))
	session := must(connection.NewSession(ctx, nil))
	sender := must(session.NewSender(ctx, queue, nil))
	receiver := must(session.NewReceiver(ctx, queue, &amqp.ReceiverOptions{Credit: 3}))
	count := 0
	for range rounds {
		for _, size := range sizes {
			sent := message(count, size)
			check(sender.Send(ctx, sent, nil) == nil, "message %d was not accepted", count)
			came := must(receiver.Receive(ctx, nil))
			compare(sent, came)
			check(receiver.AcceptMessage(ctx, came) == nil, "message %d cannot be accepted", count)
			count++
		}
	}
	settleOtherwise(ctx, sender, receiver)
	check(sender.Close(ctx) == nil && receiver.Close(ctx) == nil && connection.Close() == nil, "it cannot be closed")
	if len(arguments) == 3 {
		_, err := connect(ctx, []string{arguments[0], arguments[1], "wrong"})
		check(err != nil, "a wrong password is let in")
	}
	fmt.Printf("go-amqp: %d messages came back\n", count)
}

func settleOtherwise(ctx context.Context, sender *amqp.Sender, receiver *amqp.Receiver) {
	sent := message(1, 10)
	check(sender.Send(ctx, sent, nil) == nil, "a message was not accepted")
	came := must(receiver.Receive(ctx, nil))
	check(receiver.ReleaseMessage(ctx, came) == nil, "it cannot be released")
	came = must(receiver.Receive(ctx, nil))
	compare(sent, came)
	check(receiver.RejectMessage(ctx, came, nil) == nil, "it cannot be rejected")
	soon, cancel := context.WithTimeout(ctx, absentWithin)
	defer cancel()
	_, err := receiver.Receive(soon, nil)
	check(err != nil, "a rejected message came again")
}
