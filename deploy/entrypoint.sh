#!/bin/sh
# Run denn with the database password from a mounted secret. libpq has no variable for a file that holds only a
# password, and it rejects password files that others can read, as mounted secrets can be.
set -eu
secret=${DENN_DATABASE_PASSWORD_FILE:-}
if [ -n "$secret" ]; then
    PGPASSWORD=$(cat "$secret")
    export PGPASSWORD
fi
exec denn "$@"
