// What holds a pod's network namespace open.
module weir.dev/e2e/tools/pause

go 1.26.0
