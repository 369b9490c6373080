// Nothing before the header, and the header twice.
#include <safealign.h>
#include <safealign.h>

sa_status use_of_the_header(const sa_file* file, sa_view* view, sa_error* error);
sa_status use_of_the_header(const sa_file* file, sa_view* view, sa_error* error) {
    sa_open_options options;
    sa_open_options_init(&options);
    return options.strict != 0 ? SA_ERR_NONCONFORMING : sa_map_tensor(file, "t", view, error);
}
