module remora/interop

go 1.26.8

require remora v0.0.0

replace remora => ../
