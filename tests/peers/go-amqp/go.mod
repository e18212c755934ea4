module mailrun/peers/go-amqp

go 1.22

require github.com/Azure/go-amqp v1.5.0
